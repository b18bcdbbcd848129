// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../standard.hpp"  // first: an older standard is told at once

#include <sstream>
#include <string>

#include <boost/archive/binary_iarchive.hpp>
#include <boost/archive/binary_oarchive.hpp>

#include "../comm/object.hpp"

namespace hvd::inline v0 {

/// Serializes every class that Boost.Serialization can write and for which hvd has no serializer of
/// its own.
///
/// The bytes are in Boost's binary format, so all ranks run one program on one kind of machine.
/// Include the headers of Boost.Serialization for the containers you send, and link
/// `boost_serialization`.
/// @throws the exceptions of Boost's archives, if the bytes do not match the type.
/// @throws what Boost's archives throw, for bytes that are not what was expected.
template <class T>
    requires(!std::is_trivially_copyable_v<T> && std::is_class_v<T> && !detail::string_like<T>)
struct serializer<T> {
    static void write(std::vector<std::byte>& buffer, const T& value) {
        std::ostringstream stream(std::ios::binary);
        {
            boost::archive::binary_oarchive archive(stream, boost::archive::no_header);
            archive << value;
        }
        serializer<std::string>::write(buffer, stream.str());
    }

    static T read(std::span<const std::byte>& bytes) {
        std::istringstream stream(serializer<std::string>::read(bytes), std::ios::binary);
        boost::archive::binary_iarchive archive(stream, boost::archive::no_header);
        T value;
        archive >> value;
        return value;
    }
};

}  // namespace hvd::inline v0
