// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <hvd/data_service.hpp>

#include "dataset.hpp"
#include "options.hpp"

namespace fashion_mnist {

/// The pixels of an image, its label and its number: one row of a batch on its way.
struct image_row {
    static constexpr std::size_t label = image_size, number = label + 1,
                                 size = number + sizeof(std::uint32_t);
    using bytes = std::array<std::uint8_t, size>;

    static sample_index number_of(const std::uint8_t* row) {
        std::uint32_t value = 0;
        std::memcpy(&value, row + number, sizeof value);
        return value;
    }
};

/// The source of the pipeline.
class numbered_images {
public:
    explicit numbered_images(const dataset& images) : images_(&images) {}

    std::size_t size() const { return images_->size(); }
    image_row::bytes read(std::size_t i) const {
        image_row::bytes row{};
        std::memcpy(row.data(), images_->pixels(i), image_size);
        row[image_row::label] = images_->label(i);
        const auto number = static_cast<std::uint32_t>(i);
        std::memcpy(row.data() + image_row::number, &number, sizeof number);
        return row;
    }

private:
    const dataset* images_;
};

/// Moves the image by at most two pixels each way, and mirrors every other one.
inline image_row::bytes moved(const image_row::bytes& row, hvd::data::random& draws) {
    constexpr int side = int(image_side), most = 2;
    const int down = int(draws.below(2 * most + 1)) - most;
    const int right = int(draws.below(2 * most + 1)) - most;
    const bool mirrors = draws.below(2) == 1;
    image_row::bytes result = row;
    for (int y = 0; y < side; ++y)
        for (int x = 0; x < side; ++x) {
            const int from_y = y - down, from_x = (mirrors ? side - 1 - x : x) - right;
            const bool inside = from_y >= 0 && from_y < side && from_x >= 0 && from_x < side;
            result[std::size_t(y * side + x)] =
                inside ? row[std::size_t(from_y * side + from_x)] : std::uint8_t(0);
        }
    return result;
}

/// The pipeline of trainer and workers, which have the same options. `images` outlives it.
inline auto augmented(const dataset& images, const options& options, std::size_t batch) {
    namespace data = hvd::data;
    return data::from(numbered_images(images)) |
           data::map(
               [](const image_row::bytes& row, data::random& draws) { return moved(row, draws); }) |
           data::shuffle({.seed = options.seed}) | data::batch(batch) | data::prefetch(8);
}

/// A loader of so many images in an epoch.
template <class Pipeline>
struct loaded_images {
    loaded_images(hvd::data::loader<Pipeline>& from, std::size_t images)
        : loader(from), size(images) {}

    hvd::data::loader<Pipeline>& loader;
    std::size_t size;
};

/// Calls `use(batches)` with what the ranks train on: the images as they are, or a loader of
/// augmented ones, which come from the workers of a data service if there is one.
template <class Communicator, class F>
void with_batches(const Communicator& comm, const options& options, const dataset& images, F use) {
    namespace data = hvd::data;
    const auto batches = [&] { return augmented(images, options, options.batch_of(comm.size())); };
    if (!options.data_service.empty()) {
        const auto config = data::service_config::read(
            options.data_service.string(), data::wait_for_file{std::chrono::seconds(60)});
        data::loader loader(batches() | data::send_to_data_service(config, comm));
        use(loaded_images{loader, images.size()});
    } else if (options.augment) {
        data::loader loader(batches(), comm);
        use(loaded_images{loader, images.size()});
    } else {
        use(images);
    }
}

}  // namespace fashion_mnist
