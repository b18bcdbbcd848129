// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Trains a linear classifier on images whose augmentation takes longer than the training:
//   augment_train                 augments in this process
//   augment_train compute.json    lets the workers of a data service do it, with the same result
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include <hvd/data_service.hpp>

#include "pipeline.hpp"

namespace {

namespace data = hvd::data;
using namespace std::chrono_literals;
using batch_type = data::rows<float>;

class classifier {
public:
    // A step of gradient descent on the cross-entropy of a batch.
    void step(const batch_type& batch) {
        std::vector<float> gradient(weights_.size());
        for (std::size_t i = 0; i < batch.size(); ++i) add_gradient(batch[i], gradient);
        for (std::size_t w = 0; w < weights_.size(); ++w)
            weights_[w] -= rate * gradient[w] / float(batch.size());
        seen_ += batch.size();
    }

    double accuracy() const { return seen_ == 0 ? 0 : double(right_) / double(seen_); }
    // A number for all bits of the weights.
    std::uint64_t digest() const {
        std::uint64_t value = 0xcbf29ce484222325u;
        for (const float w : weights_)
            value = (value ^ __builtin_bit_cast(std::uint32_t, w)) * 0x100000001b3u;
        return value;
    }
    void forget_accuracy() { seen_ = right_ = 0; }

private:
    static constexpr float rate = 0.02f;

    void add_gradient(const float* image, std::vector<float>& gradient) {
        const std::size_t kind = std::size_t(image[augment::pixels]);
        std::array<float, augment::kinds> chance = scores(image);
        std::size_t best = 0;
        float sum = 0;
        for (std::size_t k = 0; k < chance.size(); ++k) {
            if (chance[k] > chance[best]) best = k;
            sum += std::exp(chance[k]);
        }
        right_ += best == kind ? 1u : 0u;
        for (std::size_t k = 0; k < chance.size(); ++k) {
            const float by = std::exp(chance[k]) / sum - (k == kind ? 1.f : 0.f);
            float* const of_kind = gradient.data() + k * augment::pixels;
            for (std::size_t p = 0; p < augment::pixels; ++p) of_kind[p] += by * image[p];
        }
    }
    std::array<float, augment::kinds> scores(const float* image) const {
        std::array<float, augment::kinds> all{};
        for (std::size_t k = 0; k < all.size(); ++k)
            for (std::size_t p = 0; p < augment::pixels; ++p)
                all[k] += weights_[k * augment::pixels + p] * image[p];
        return all;
    }

    std::vector<float> weights_ = std::vector<float>(augment::kinds * augment::pixels);
    std::size_t seen_ = 0, right_ = 0;
};

template <class Loader>
void train(Loader& loader) {
    classifier model;
    for (std::uint64_t epoch = 0; epoch < augment::epochs; ++epoch) {
        const auto begin = std::chrono::steady_clock::now();
        model.forget_accuracy();
        for (const batch_type& batch : loader.epoch(epoch)) model.step(batch);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        std::printf("epoch %llu: accuracy %.3f, %.0f images a second\n",
                    static_cast<unsigned long long>(epoch), model.accuracy(),
                    double(augment::images) / took.count());
    }
    std::printf("weights %016llx\n", static_cast<unsigned long long>(model.digest()));
}

}  // namespace

int main(int argc, char** argv) {
    try {
        if (argc < 2) {
            data::loader loader(augment::pipeline(), hvd::part{});
            train(loader);
            return 0;
        }
        const auto config = data::service_config::read(argv[1], data::wait_for_file{30s});
        const auto batches = augment::pipeline() | data::send_to_data_service(config, 0, 1);
        data::loader loader(batches);
        train(loader);
        std::printf("%s\n", batches.statistics().text().c_str());
        return 0;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
