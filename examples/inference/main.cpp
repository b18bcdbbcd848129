// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Classifies the test images of Fashion-MNIST with a network that examples/fashion_mnist has
// trained. It does not use hvd: other programs can read a checkpoint.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <numeric>

#include "dataset.hpp"
#include "loss.hpp"
#include "models.hpp"
#include "safetensors.hpp"

#ifdef HVD_VERSION_MAJOR
#error "this program is to show that it needs nothing of hvd"
#endif

namespace {

using namespace fashion_mnist;

model<float> load_model(const std::filesystem::path& path) {
    const inference::safetensors file(path);
    auto model = make_model<float>(file.metadata("model"), 0);
    for (parameter<float>* p : model.parameters())
        file.read("model." + p->name, {p->value.data(), static_cast<std::size_t>(p->value.size())});
    return model;
}

score classify(model<float>& model, const dataset& data) {
    constexpr std::size_t at_once = 100;
    matrix<float> images;
    std::vector<std::uint8_t> labels;
    score all;
    for (std::size_t first = 0; first < data.size(); first += at_once) {
        std::vector<sample_index> samples(std::min(at_once, data.size() - first));
        std::iota(samples.begin(), samples.end(), static_cast<sample_index>(first));
        data.gather(std::span<const sample_index>(samples), images, labels);
        all += softmax_cross_entropy(model.forward(images, {}), labels, 1.0f);
    }
    return all;
}

}  // namespace

int main(int argc, char** argv) try {
    std::filesystem::path checkpoint, data = "/usr/share/datasets/fashion-mnist";
    CLI::App app("Classifies Fashion-MNIST's test images with a trained network.");
    app.add_option("checkpoint", checkpoint, "what fashion_mnist --checkpoint wrote")->required();
    app.add_option("--data", data, "directory of the four IDX files")->capture_default_str();
    CLI11_PARSE(app, argc, argv);

    auto model = load_model(checkpoint);
    const score score = classify(model, load_dataset(data, "t10k"));
    fmt::print("{}: test accuracy {:.2f} %\n", model.name(), 100 * score.accuracy());
} catch (const std::exception& error) {
    fmt::print(stderr, "inference: {}\n", error.what());
    return EXIT_FAILURE;
}
