// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#include <doctest/doctest.h>

#include <filesystem>
#include <string>

#include "checkpoint.hpp"
#include "fixtures.hpp"
#include "models.hpp"

namespace {

using namespace fashion_mnist;
using fixtures::read_file;
using fixtures::write_file;

/// A model with an optimizer whose velocities are not zero.
struct trained {
    explicit trained(const char* name, std::uint64_t seed)
        : network(make_model<float>(name, seed)), optimizer(network, 0.9) {
        for (parameter<float>* p : network.parameters()) p->gradient = p->value;
        optimizer.rate = 0.1;
        optimizer.step();
    }

    bool operator==(const trained& other) const {
        for (std::size_t i = 0; i < network.parameters().size(); ++i)
            if (network.parameters()[i]->value != other.network.parameters()[i]->value ||
                optimizer.velocities()[i] != other.optimizer.velocities()[i])
                return false;
        return true;
    }

    model<float> network;
    sgd<float> optimizer;
};

std::string why_refused(const std::filesystem::path& path) {
    trained model("mlp", 2);
    const trained before("mlp", 2);
    try {
        load_checkpoint(path, model.network, model.optimizer);
    } catch (const file_error& error) {
        CHECK(model == before);
        const std::string text = error.what();
        CHECK(text.starts_with(path.string() + ": "));
        return text.substr(path.string().size() + 2);
    }
    return "loaded";
}

}  // namespace

TEST_CASE("a checkpoint brings back parameters, velocities, seed and epochs") {
    const fixtures::temporary_directory directory;
    for (const char* name : {"mlp", "cnn"}) {
        trained saved(name, 1);
        save_checkpoint(directory / name, saved.network, saved.optimizer, {17, 3});
        trained loaded(name, 2);
        REQUIRE_FALSE(loaded == saved);
        const training_state state =
            load_checkpoint(directory / name, loaded.network, loaded.optimizer);
        CHECK(loaded == saved);
        CHECK(state.seed == 17);
        CHECK(state.epochs == 3);
    }
}

TEST_CASE("a checkpoint replaces the old one and leaves nothing beside it") {
    const fixtures::temporary_directory directory;
    trained model("mlp", 1);
    save_checkpoint(directory / "file", model.network, model.optimizer, {1, 1});
    save_checkpoint(directory / "file", model.network, model.optimizer, {1, 2});
    CHECK(load_checkpoint(directory / "file", model.network, model.optimizer).epochs == 2);
    const std::filesystem::directory_iterator files(directory / "");
    CHECK(std::distance(begin(files), end(files)) == 1);
}

TEST_CASE("a checkpoint that cannot be written is said and the old one stays") {
    const fixtures::temporary_directory directory;
    trained model("mlp", 1);
    CHECK_THROWS_WITH_AS(
        save_checkpoint(directory / "absent/file", model.network, model.optimizer, {}),
        doctest::Contains("No such file or directory"), file_error);
    save_checkpoint(directory / "file", model.network, model.optimizer, {1, 1});
    std::filesystem::create_directory(directory / "file.tmp");
    CHECK_THROWS_AS(save_checkpoint(directory / "file", model.network, model.optimizer, {1, 2}),
                    file_error);
    CHECK(load_checkpoint(directory / "file", model.network, model.optimizer).epochs == 1);
}

TEST_CASE("a missing, foreign, torn, damaged or other model's checkpoint changes nothing") {
    const fixtures::temporary_directory directory;
    CHECK(why_refused(directory / "absent") == "No such file or directory");

    write_file(directory / "foreign", "\x89PNG and so on");
    CHECK(why_refused(directory / "foreign") == "not a checkpoint");

    trained model("mlp", 1);
    save_checkpoint(directory / "whole", model.network, model.optimizer, {1, 1});
    REQUIRE(why_refused(directory / "whole") == "loaded");
    const std::string whole = read_file(directory / "whole");
    for (const std::size_t size :
         {std::size_t(0), std::size_t(10), std::size_t(20), std::size_t(23), std::size_t(100),
          whole.size() / 2, whole.size() - 1}) {
        CAPTURE(size);
        write_file(directory / "torn", whole.substr(0, size));
        CHECK(why_refused(directory / "torn") ==
              (size < 20 ? "not a checkpoint" : "a torn or damaged checkpoint"));
    }
    for (const std::size_t at : {std::size_t(30), whole.size() / 2, whole.size() - 2}) {
        std::string damaged = whole;
        damaged[at] ^= 1;
        write_file(directory / "damaged", damaged);
        CHECK(why_refused(directory / "damaged") == "a torn or damaged checkpoint");
    }

    trained other("cnn", 1);
    save_checkpoint(directory / "cnn", other.network, other.optimizer, {1, 1});
    CHECK(why_refused(directory / "cnn") == "a checkpoint of cnn, not of mlp");
}

TEST_CASE("a checkpoint of another element type is refused") {
    const fixtures::temporary_directory directory;
    auto network = make_model<double>("mlp", 1);
    sgd<double> optimizer(network, 0.9);
    save_checkpoint(directory / "double", network, optimizer, {1, 1});
    CHECK(why_refused(directory / "double") == "its tensors are not those of mlp");
}
