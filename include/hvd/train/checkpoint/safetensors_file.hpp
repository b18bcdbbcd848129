// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../core/compiled.hpp"
#include "atomic_file.hpp"

namespace hvd::inline v0 {

/// A safetensors file whose header has been read and checked. Every tensor lies in the file and has
/// the size of its shape. None overlap or leave gaps, and no name occurs twice. No memory is
/// allocated for a size that the file does not have.
///
/// A file may have tensors of element types that hvd has not (8-bit floats). Only `require` and
/// `read` of such a tensor throw.
class HVD_API safetensors_file {
public:
    struct entry {
        dtype type;             // `user` for a type that hvd has not
        std::string type_name;  // as the file names it
        std::vector<std::size_t> shape;
        std::size_t first;  // byte offset in the file
        std::size_t bytes;
    };

    /// @throws hvd::checkpoint_error for a file that is absent, truncated, of another format or
    /// inconsistent.
    explicit safetensors_file(std::string path) : path_(std::move(path)) { open(); }

    const std::map<std::string, entry>& tensors() const { return tensors_; }
    const checkpoint_metadata& metadata() const { return metadata_; }
    const std::string& path() const { return path_; }

    /// @throws hvd::checkpoint_error unless the file has the tensor with this element type and
    /// shape.
    const entry& require(const named_tensor& t) const;

    /// Reads it into the memory of `t`.
    void read(const named_tensor& t) const;

    /// Reads bytes from an offset of the file, as the `first` of an entry is. Several threads may
    /// read at once.
    void read_bytes(std::size_t first, void* to, std::size_t n) const;

private:
    void open();

    template <class... Parts>
    [[gnu::cold, noreturn]] void refuse(const Parts&... parts) const;

    std::size_t file_size() const;
    void parse(const std::string& text, std::size_t data, std::size_t size);
    void check_places(std::size_t data, std::size_t size) const;

    std::string path_;
    detail::file_descriptor file_;
    std::map<std::string, entry> tensors_;
    checkpoint_metadata metadata_;
};

}  // namespace hvd::inline v0

#ifndef HVD_COMPILED
#include "safetensors_file_inline.hpp"
#endif
