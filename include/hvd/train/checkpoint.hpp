// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "atomic_file.hpp"
#include "refuse.hpp"
#include "state.hpp"

namespace hvd {
inline namespace v0 {

/// Text beside the tensors of a file.
using checkpoint_metadata = std::map<std::string, std::string>;

/// Writes tensors in the safetensors format, which other tools read without hvd. Atomic: a process
/// that dies while writing leaves the old file as it was. Data is 8-byte aligned; the machine is
/// little-endian.
/// @throws hvd::checkpoint_error with path and reason; the old file is still there then.
inline void write_safetensors(const std::string& path, std::span<const named_tensor> tensors,
                              const checkpoint_metadata& metadata = {}) {
    nlohmann::ordered_json header;
    if (!metadata.empty()) header["__metadata__"] = metadata;
    std::size_t at = 0;
    for (const named_tensor& t : tensors) {
        const auto* const type = detail::find_safetensors_type(t.type);
        if (type == nullptr)
            detail::refuse_file(path, "the format has no element type for \"", t.name, "\"");
        if (t.name == "__metadata__" || header.contains(t.name))
            detail::refuse_file(path, "two tensors are named \"", t.name, "\"");
        header[t.name] = {
            {"dtype", type->name}, {"shape", t.shape}, {"data_offsets", {at, at + t.bytes}}};
        at += t.bytes;
    }
    std::string text = header.is_null() ? "{}" : header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const std::uint64_t length = text.size();

    detail::atomic_file file(path);
    file.write(std::as_bytes(std::span(&length, 1)));
    file.write(std::as_bytes(std::span(text)));
    for (const named_tensor& t : tensors) file.write({t.data, t.bytes});
    file.commit();
}

/// A safetensors file whose header has been read and found right: every tensor lies in the file,
/// has the size of its shape, and none overlap or leave gaps. Nothing is allocated for a size that
/// the file does not have.
class safetensors_file {
public:
    struct entry {
        dtype type;
        std::vector<std::size_t> shape;
        std::size_t first;  // byte in the file
        std::size_t bytes;
    };

    /// @throws hvd::checkpoint_error for a file that is absent, torn, foreign or inconsistent.
    explicit safetensors_file(std::string path) : path_(std::move(path)), file_(path_, O_RDONLY) {
        if (file_.get() < 0) refuse(std::strerror(errno));
        const std::size_t size = file_size();
        std::uint64_t length = 0;
        if (size < sizeof length) refuse("not a safetensors file: it has ", size, " bytes");
        read_bytes(0, &length, sizeof length);
        if (length > most_header_bytes)
            refuse("not a safetensors file: its header would have ", length, " bytes");
        if (length > size - sizeof length)
            refuse("torn, or not a safetensors file: it has ", size,
                   " bytes, its header alone would have ", length);
        std::string text(std::size_t(length), ' ');
        read_bytes(sizeof length, text.data(), text.size());
        parse(text, sizeof length + std::size_t(length), size);
    }

    const std::map<std::string, entry>& tensors() const { return tensors_; }
    const checkpoint_metadata& metadata() const { return metadata_; }
    const std::string& path() const { return path_; }

    /// @throws hvd::checkpoint_error unless the file has the tensor with this element type and
    /// shape.
    const entry& require(const named_tensor& t) const {
        const auto found = tensors_.find(t.name);
        if (found == tensors_.end()) refuse("has no tensor \"", t.name, "\"");
        const entry& e = found->second;
        if (e.type != t.type)
            refuse("tensor \"", t.name, "\" is of ", dtype_name(e.type), ", and of ",
                   dtype_name(t.type), " was expected");
        if (e.shape != t.shape)
            refuse("tensor \"", t.name, "\" has shape ", detail::shown(e.shape), ", expected was ",
                   detail::shown(t.shape));
        return e;
    }

    /// Reads it into the memory of `t`.
    void read(const named_tensor& t) const { read_bytes(require(t).first, t.data, t.bytes); }

private:
    static constexpr std::size_t most_header_bytes = 100'000'000;  // as the format's own reader

    template <class... Parts>
    [[gnu::cold, noreturn]] void refuse(const Parts&... parts) const {
        detail::refuse_file(path_, parts...);
    }

    std::size_t file_size() const {
        struct stat status;
        if (::fstat(file_.get(), &status) != 0) refuse(std::strerror(errno));
        if (!S_ISREG(status.st_mode)) refuse("not a regular file");
        return std::size_t(status.st_size);
    }

    void read_bytes(std::size_t first, void* to, std::size_t n) const {
        auto* at = static_cast<char*>(to);
        while (n > 0) {
            const ssize_t got = ::pread(file_.get(), at, n, off_t(first));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) refuse(std::strerror(errno));
            if (got == 0) refuse("torn: it ends at byte ", first);
            at += got;
            first += std::size_t(got);
            n -= std::size_t(got);
        }
    }

    void parse(const std::string& text, std::size_t data, std::size_t size) {
        const auto header = nlohmann::json::parse(text, nullptr, false);
        if (!header.is_object()) refuse("not a safetensors file: its header is no JSON object");
        for (const auto& [name, value] : header.items()) {
            if (name == "__metadata__") take_metadata(value);
            else tensors_.emplace(name, entry_of(name, value, data));
        }
        check_places(data, size);
    }

    void take_metadata(const nlohmann::json& value) {
        if (!value.is_object()) refuse("its metadata is no object");
        for (const auto& [key, text] : value.items()) {
            if (!text.is_string()) refuse("its metadata \"", key, "\" is no text");
            metadata_.emplace(key, text.get<std::string>());
        }
    }

    static bool is_numbers(const nlohmann::json& value) {
        return value.is_array() &&
               std::ranges::all_of(value, [](const auto& n) { return n.is_number_unsigned(); });
    }

    entry entry_of(const std::string& name, const nlohmann::json& value, std::size_t data) const {
        if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
            !value.contains("shape") || !is_numbers(value["shape"]) ||
            !value.contains("data_offsets") || !is_numbers(value["data_offsets"]) ||
            value["data_offsets"].size() != 2)
            refuse("tensor \"", name, "\" is not described by dtype, shape and data_offsets");
        const auto type_name = value["dtype"].get<std::string>();
        const auto* const type = detail::find_safetensors_type(std::string_view(type_name));
        if (type == nullptr)
            refuse("tensor \"", name, "\" has the unknown element type ", type_name);
        const auto first = value["data_offsets"][0].get<std::size_t>(),
                   last = value["data_offsets"][1].get<std::size_t>();
        entry e{type->type, value["shape"].get<std::vector<std::size_t>>(), data + first,
                last - first};
        std::size_t bytes = type->bytes;
        for (const std::size_t n : e.shape)
            if (__builtin_mul_overflow(bytes, n, &bytes))
                refuse("tensor \"", name, "\" has the impossible shape ", detail::shown(e.shape));
        if (last < first || e.bytes != bytes || e.first < data)
            refuse("tensor \"", name, "\" of shape ", detail::shown(e.shape), " has ", bytes,
                   " bytes and lies from ", first, " to ", last);
        return e;
    }

    void check_places(std::size_t data, std::size_t size) const {
        std::vector<std::pair<std::size_t, std::size_t>> places;
        for (const auto& [name, e] : tensors_) places.emplace_back(e.first, e.bytes);
        std::ranges::sort(places);
        std::size_t at = data;
        for (const auto& [first, bytes] : places) {
            if (first != at) refuse("its tensors overlap or leave a gap at byte ", at);
            at += bytes;
        }
        if (at != size) refuse("torn: it has ", size, " bytes, its tensors say ", at);
    }

    std::string path_;
    detail::file_descriptor file_;
    std::map<std::string, entry> tensors_;
    checkpoint_metadata metadata_;
};

/// Where a training is. All that a sampler needs to go on, on any number of ranks.
struct training_progress {
    std::uint64_t step = 0;
    std::uint64_t epoch = 0;
    std::uint64_t seed = 0;
    std::uint64_t samples_done = 0;  ///< of this epoch, by all ranks together
    bool operator==(const training_progress&) const = default;
};

namespace detail {

template <class T>
named_tensor slot_tensor(const char* slot, std::size_t i, std::vector<T>& values) {
    return named(std::string(text("optimizer.", slot, ".", i)), values);
}

template <class F>
void for_each_progress(training_progress& p, F f) {
    f("step", p.step);
    f("epoch", p.epoch);
    f("seed", p.seed);
    f("samples_done", p.samples_done);
}

template <class N>
std::string written(N number) {
    char digits[40];
    return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

template <class N>
void read_number(const safetensors_file& file, const std::string& key, N& number) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end())
        refuse_file(file.path(), "has no \"", key, "\" in its metadata");
    const std::string& text = found->second;
    const auto end = text.data() + text.size();
    if (std::from_chars(text.data(), end, number).ptr != end || text.empty())
        refuse_file(file.path(), "has \"", text, "\" as \"", key, "\", which is no number");
}

// f on the root; what it throws there is thrown on all ranks. **Collective**.
template <class Comm, class F>
void on_root_or_all_throw(Comm& comm, F f) {
    std::string failure;
    if (comm.rank() == 0) {
        try {
            f();
        } catch (const std::exception& e) {
            failure = e.what();
            if (failure.empty()) failure = "unknown reason";
        }
    }
    comm.broadcast_object(failure, root{0});
    if (!failure.empty()) throw checkpoint_error(comm.rank(), failure);
}

template <class Comm, class O, class T>
std::vector<named_tensor> model_tensors(const distributed_optimizer<Comm, O, T>& optimizer) {
    std::vector<named_tensor> model;
    optimizer.for_each_shared(
        [&](const std::string& name, tensor_view<T> value, const auto& shape) {
            model.push_back(named("model." + name, value));
            model.back().shape = shape;
        });
    return model;
}

template <class Comm, class O, class T>
void write_training(const std::string& path, distributed_optimizer<Comm, O, T>& optimizer,
                    training_progress progress, checkpoint_metadata metadata) {
    std::vector<named_tensor> tensors = model_tensors(optimizer);
    optimizer.optimizer().for_each_slot([&](const char* slot, auto& slots) {
        for (std::size_t i = 0; i < slots.size(); ++i)
            if (!optimizer.is_local(i) && !slots[i].empty())
                tensors.push_back(slot_tensor(slot, i, slots[i]));
    });
    optimizer.optimizer().for_each_number([&](const char* name, auto& number) {
        metadata[std::string(text("optimizer.", name))] = written(number);
    });
    for_each_progress(progress, [&](const char* name, auto& n) {
        metadata[std::string(text("progress.", name))] = written(n);
    });
    write_safetensors(path, tensors, metadata);
}

template <class Comm, class O, class T>
training_progress read_training(const safetensors_file& file,
                                distributed_optimizer<Comm, O, T>& optimizer) {
    const std::vector<named_tensor> model = model_tensors(optimizer);
    for (const auto& t : model) file.require(t);
    auto restored = optimizer.optimizer();  // changed only when the whole file has been found right
    training_progress progress;
    for_each_progress(progress, [&](const char* name, auto& n) {
        read_number(file, std::string(text("progress.", name)), n);
    });
    restored.for_each_number([&](const char* name, auto& n) {
        read_number(file, std::string(text("optimizer.", name)), n);
    });
    restored.for_each_slot([&](const char* slot, auto& slots) {
        std::size_t i = 0;
        optimizer.for_each_parameter([&](const std::string&, tensor_view<T> value) {
            const std::size_t index = i++;
            if (optimizer.is_local(index)) return;
            if (slots.size() <= index) slots.resize(index + 1);
            slots[index].clear();
            if (!file.tensors().contains(std::string(text("optimizer.", slot, ".", index)))) return;
            named_tensor expected = slot_tensor(slot, index, slots[index]);
            expected.shape = {value.size()};
            file.require(expected);
            slots[index].resize(value.size());
            file.read(slot_tensor(slot, index, slots[index]));
        });
    });
    for (const auto& t : model) file.read(t);
    optimizer.optimizer() = std::move(restored);
    return progress;
}

}  // namespace detail

/// Rank 0 writes model, optimizer and progress in one atomic safetensors file: parameters as
/// `model.NAME`, slots as `optimizer.SLOT.INDEX`, numbers in the metadata. Local parameters are not
/// part of it.
/// **Collective**: when it returns the file is on the disk. Feature G10.
/// @throws hvd::checkpoint_error on every rank if rank 0 could not.
template <class Comm, optimizer_with_state O, class T>
void save_checkpoint(const std::string& path, distributed_optimizer<Comm, O, T>& optimizer,
                     const training_progress& progress, const checkpoint_metadata& metadata = {}) {
    detail::on_root_or_all_throw(
        optimizer.comm(), [&] { detail::write_training(path, optimizer, progress, metadata); });
}

/// Rank 0 reads the file and gives everybody its state: the run goes on, on any number of ranks.
/// **Collective**. A file that is refused changes nothing.
/// @throws hvd::checkpoint_error on every rank, with path and reason.
template <class Comm, optimizer_with_state O, class T>
training_progress load_checkpoint(const std::string& path,
                                  distributed_optimizer<Comm, O, T>& optimizer) {
    training_progress progress;
    detail::on_root_or_all_throw(optimizer.comm(), [&] {
        progress = detail::read_training(safetensors_file(path), optimizer);
    });
    broadcast_parameters(optimizer);
    broadcast_optimizer_state(optimizer);
    optimizer.comm().broadcast_object(progress, root{0});
    return progress;
}

}  // namespace v0
}  // namespace hvd
