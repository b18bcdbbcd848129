// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "idx.hpp"
#include "model.hpp"
#include "optimizer.hpp"

// A checkpoint is lines of text, then numbers, then a checksum (README.md shows how to read one):
//
//     hvd-fashion-mnist 1
//     model mlp
//     seed 1
//     epochs 5
//     float32 dense1.weight 128 784
//     …                               every parameter, then every velocity: element, name, shape
//     end
//     <the tensors, column by column, little-endian>
//     <CRC-32 of everything before, 4 bytes, little-endian>

namespace fashion_mnist {

/// How far training has come, beside the parameters.
struct training_state {
    std::uint64_t seed = 1;
    std::uint64_t epochs = 0;  // completed
};

namespace checkpoint_format {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

inline constexpr std::string_view magic = "hvd-fashion-mnist 1\n";

/// Calls visit(name, matrix) for all that is saved.
template <class Scalar, class Visit>
void for_each_tensor(const model<Scalar>& model, sgd<Scalar>& optimizer, Visit visit) {
    for (parameter<Scalar>* p : model.parameters()) visit(p->name, p->value);
    for (std::size_t i = 0; i < model.parameters().size(); ++i)
        visit(model.parameters()[i]->name + ".velocity", optimizer.velocities()[i]);
}

template <class Scalar>
std::string header(const model<Scalar>& model, sgd<Scalar>& optimizer,
                   const training_state& state) {
    std::string text = fmt::format("{}model {}\nseed {}\nepochs {}\n", magic, model.name(),
                                   state.seed, state.epochs);
    for_each_tensor(model, optimizer, [&](const std::string& name, const matrix<Scalar>& tensor) {
        text += fmt::format("float{} {} {} {}\n", 8 * sizeof(Scalar), name, tensor.rows(),
                            tensor.cols());
    });
    return text + "end\n";
}

inline std::uint32_t checksum(std::string_view bytes) {
    const auto* data = reinterpret_cast<const Bytef*>(bytes.data());
    return static_cast<std::uint32_t>(crc32_z(0, data, bytes.size()));
}

/// The rest of the line that begins with `key`; empty if there is none.
inline std::string_view value_of(std::string_view text, std::string_view key) {
    const auto at = text.find(key);
    if (at == text.npos) return {};
    text.remove_prefix(at + key.size());
    return text.substr(0, text.find('\n'));
}

inline std::uint64_t number_of(std::string_view text, std::string_view key) {
    const std::string_view digits = value_of(text, key);
    std::uint64_t number = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), number);
    return number;
}

/// Either the old file or the whole new one is there, whatever happens meanwhile.
inline void write_atomically(const std::filesystem::path& path, std::string_view bytes) {
    const std::filesystem::path temporary = path.string() + ".tmp";
    const auto check = [&](bool done) {
        if (!done) throw file_error(temporary, std::strerror(errno));
    };
    const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    check(file >= 0);
    struct closer {
        int file;
        ~closer() { ::close(file); }
    } close_at_end{file};
    while (!bytes.empty()) {
        const ssize_t written = ::write(file, bytes.data(), bytes.size());
        check(written >= 0 || errno == EINTR);
        if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    check(::fsync(file) == 0);
    check(::rename(temporary.c_str(), path.c_str()) == 0);
}

}  // namespace checkpoint_format

/// Replaces the file at `path`, or leaves it as it was and throws.
template <class Scalar>
void save_checkpoint(const std::filesystem::path& path, const model<Scalar>& model,
                     sgd<Scalar>& optimizer, const training_state& state) {
    namespace format = checkpoint_format;
    std::string bytes = format::header(model, optimizer, state);
    const auto append = [&](const void* data, std::size_t count) {
        bytes.append(static_cast<const char*>(data), count);
    };
    format::for_each_tensor(
        model, optimizer, [&](const std::string&, const matrix<Scalar>& tensor) {
            append(tensor.data(), sizeof(Scalar) * static_cast<std::size_t>(tensor.size()));
        });
    const std::uint32_t sum = format::checksum(bytes);
    append(&sum, sizeof sum);
    format::write_atomically(path, bytes);
}

/// Reads parameters and velocities of the same model.
///
/// @throws file_error if the file is missing, torn, foreign or of another model; nothing is
/// changed then.
template <class Scalar>
training_state load_checkpoint(const std::filesystem::path& path, model<Scalar>& model,
                               sgd<Scalar>& optimizer) {
    namespace format = checkpoint_format;
    std::ifstream file(path, std::ios::binary);
    if (!file) throw file_error(path, std::strerror(errno));
    const std::string content{std::istreambuf_iterator<char>(file), {}};
    std::string_view bytes = content;

    if (!bytes.starts_with(format::magic)) throw file_error(path, "not a checkpoint");
    std::uint32_t sum;
    bytes.remove_suffix(sizeof sum);
    std::memcpy(&sum, bytes.data() + bytes.size(), sizeof sum);
    if (format::checksum(bytes) != sum) throw file_error(path, "a torn or damaged checkpoint");

    const std::string_view name = format::value_of(bytes, "\nmodel ");
    if (name != model.name())
        throw file_error(path, fmt::format("a checkpoint of {}, not of {}", name, model.name()));
    const training_state state{format::number_of(bytes, "\nseed "),
                               format::number_of(bytes, "\nepochs ")};
    const std::string expected = format::header(model, optimizer, state);
    std::size_t size = expected.size();
    format::for_each_tensor(model, optimizer,
                            [&](const std::string&, const matrix<Scalar>& tensor) {
                                size += sizeof(Scalar) * static_cast<std::size_t>(tensor.size());
                            });
    if (!bytes.starts_with(expected) || bytes.size() != size)
        throw file_error(path, "its tensors are not those of " + model.name());

    const char* from = bytes.data() + expected.size();
    format::for_each_tensor(model, optimizer, [&](const std::string&, matrix<Scalar>& tensor) {
        const std::size_t count = sizeof(Scalar) * static_cast<std::size_t>(tensor.size());
        std::memcpy(tensor.data(), from, count);
        from += count;
    });
    return state;
}

}  // namespace fashion_mnist
