// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A checkpoint belongs to a model and an optimizer: tensors that it must have, and must not have.

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <hvd/checkpoint.hpp>
#include <hvd/train.hpp>
#include <stdexcept>

#include "model.hpp"
#include "shared_folder.hpp"

namespace checkpoint_contents_tests {

using communicator = hvd_test::communicator;
using hvd_test::shared_folder;
namespace optimizers = hvd::optimizers;

namespace {

// SGD has a velocity in these tests.
template <class Optimizer>
Optimizer first_numbers() {
    if constexpr (std::is_same_v<Optimizer, optimizers::sgd<float>>) return {.momentum = 0.9f};
    else return {};
}

// Two parameters, registered in either order. Their gradients tell them apart.
template <class Optimizer = optimizers::sgd<float>>
struct two {
    std::vector<float> a = {1, 1}, b = {2, 2}, da = {1, 1}, db = {100, 100};
    hvd::distributed_optimizer<communicator, Optimizer> optimizer;

    two(communicator& comm, std::initializer_list<char> names,
        Optimizer inside = first_numbers<Optimizer>())
        : optimizer(comm, std::move(inside)) {
        for (const char name : names)
            if (name == 'a') optimizer.register_parameter("a", a, da);
            else optimizer.register_parameter("b", b, db);
    }
};

// An array of another library: its sizes are signed, and it has nothing else of a vector.
class foreign_array {
public:
    using value_type = double;
    long size() const { return long(numbers_.size()); }
    double* data() { return numbers_.data(); }
    const double* data() const { return numbers_.data(); }
    void resize(long n) { numbers_.resize(std::size_t(n)); }

private:
    std::vector<double> numbers_;
};

// Momentum whose state is in such arrays.
struct foreign_momentum {
    using value_type = float;
    std::vector<foreign_array> velocity;
    double factor = 0.5;

    void step(optimizers::tensors<float> parameters, optimizers::tensors<float> gradients) {
        velocity.resize(parameters.size());
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            velocity[i].resize(long(parameters[i].size()));
            for (std::size_t k = 0; k < parameters[i].size(); ++k) {
                double& v = velocity[i].data()[k];
                v = factor * v + double(gradients[i].data()[k]);
                parameters[i].data()[k] -= float(v);
            }
        }
    }
    template <class F>
    void for_each_slot(F f) {
        f("velocity", velocity);
    }
    template <class F>
    void for_each_number(F f) {
        f("factor", factor);
    }
};

// Memory of the user, which has its size.
struct flat_array {
    using value_type = float;
    float* first = nullptr;
    std::size_t size() const { return 2; }
    float* data() { return first; }
    const float* data() const { return first; }
    void resize(std::size_t n) {
        if (n != size()) throw std::logic_error("memory of the user has its size");
    }
};

// Momentum over one flat buffer, as a program in C has it.
struct flat_momentum {
    using value_type = float;
    std::vector<flat_array> velocity;

    void step(optimizers::tensors<float> parameters, optimizers::tensors<float> gradients) {
        for (std::size_t i = 0; i < parameters.size(); ++i)
            for (std::size_t k = 0; k < parameters[i].size(); ++k) {
                float& v = velocity[i].data()[k];
                v = v / 2 + gradients[i].data()[k];
                parameters[i].data()[k] -= v;
            }
    }
    template <class F>
    void for_each_slot(F f) {
        f("velocity", velocity);
    }
    template <class F>
    void for_each_number(F) {}
};

// An optimizer with numbers of every kind.
struct counting : optimizers::sgd<float> {
    bool warm = true;
    hvd::bfloat16 half{1.5f};
    float tiny = 1e-41f;
    std::int64_t far = std::numeric_limits<std::int64_t>::min();
    template <class F>
    void for_each_number(F f) {
        f("warm", warm);
        f("half", half);
        f("tiny", tiny);
        f("far", far);
    }
};

template <class Optimizer>
void check_refused(const std::string& path, Optimizer& optimizer, const char* reason) {
    CHECK_THROWS_WITH_AS(hvd::load_checkpoint(path, optimizer), doctest::Contains(reason),
                         hvd::checkpoint_error);
}

const hvd::checkpoint_metadata of_rate = {{"optimizer.rate", "1"},
                                          {"progress.step", "7"},
                                          {"progress.epoch", "0"},
                                          {"progress.seed", "0"},
                                          {"progress.samples_done", "0"}};

const hvd::checkpoint_metadata of_sgd = [] {
    auto all = of_rate;
    all["optimizer.momentum"] = "0.5";
    all["optimizer.nesterov"] = "1";
    all["optimizer.weight_decay"] = "0.25";
    return all;
}();

}  // namespace

TEST_CASE("slots go to the parameters of their names, whatever the order of registration") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        two saved(comm, {'a', 'b'}), loaded(comm, {'b', 'a'});
        saved.optimizer.step();
        hvd::save_checkpoint(folder / "c", saved.optimizer, {});
        hvd::load_checkpoint(folder / "c", loaded.optimizer);
        CHECK(loaded.a == saved.a);
        CHECK(loaded.optimizer.optimizer().velocity ==
              optimizers::slots<float>{{100, 100}, {1, 1}});
        comm.barrier();
    });
}

TEST_CASE("state in arrays of another library is saved, loaded and broadcast") {
    hvd_test::on_ranks([](communicator& world) {
        const shared_folder folder(world);
        const std::string path = folder / "checkpoint";
        two<foreign_momentum> first(world, {'a', 'b'}), second(world, {'b', 'a'}),
            sent(world, {'a', 'b'});
        first.optimizer.step();
        first.optimizer.step();
        hvd::save_checkpoint(path, first.optimizer, {});
        second.optimizer.step();
        hvd::load_checkpoint(path, second.optimizer);
        if (world.rank() == 0) hvd::load_checkpoint(path, sent.optimizer);
        else hvd::load_checkpoint(path, sent.optimizer), sent.optimizer.optimizer() = {};
        hvd::broadcast_parameters(sent.optimizer);
        hvd::broadcast_optimizer_state(sent.optimizer);
        for (auto* model : {&first, &second, &sent}) model->optimizer.step();
        CHECK(first.b[0] == 2 - 100 - 150 - 175);
        CHECK(second.a == first.a);
        CHECK(second.b == first.b);
        CHECK(sent.a == first.a);
        CHECK(sent.b == first.b);
    });
}

TEST_CASE("a checkpoint of another model or optimizer is refused and changes nothing") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        two saved(comm, {'a', 'b'}), other(comm, {'b'});
        saved.optimizer.step();
        hvd::save_checkpoint(folder / "c", saved.optimizer, {});
        check_refused(folder / "c", other.optimizer, "has the tensor \"model.a\", which");
        CHECK(other.b == std::vector<float>{2, 2});
        CHECK(other.optimizer.optimizer().velocity.empty());
        two<optimizers::adam<float>> adam(comm, {'a', 'b'});
        check_refused(folder / "c", adam.optimizer, "has the tensor \"optimizer.velocity.a\"");
        two unstepped(comm, {'a', 'b'});
        hvd::save_checkpoint(folder / "c", unstepped.optimizer, {});
        check_refused(folder / "c", adam.optimizer, "has \"optimizer.momentum\", which");
        comm.barrier();
    });
}

TEST_CASE("tensors that nobody asked for are refused, and slots that were numbered") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        two<> model(comm, {'a'});
        std::vector<float> more = {1, 2};
        const auto write = [&](const char* name, hvd::checkpoint_metadata metadata) {
            comm.barrier();
            if (comm.rank() == 0)
                hvd::write_safetensors(
                    folder / "c",
                    std::vector{hvd::named("model.a", model.a), hvd::named(name, more)}, metadata);
            comm.barrier();
        };
        for (const char* name : {"model.zz", "zz", "optimizer"}) {
            write(name, of_sgd);
            check_refused(folder / "c", model.optimizer, "has the tensor");
        }
        auto by_name = of_sgd;
        write("optimizer.velocity.0", by_name);
        check_refused(folder / "c", model.optimizer, "an older hvd numbered them");
        by_name["hvd.slots"] = "by name";
        write("optimizer.velocity.a", by_name);
        hvd::load_checkpoint(folder / "c", model.optimizer);
        CHECK(model.optimizer.optimizer().velocity[0] == more);
        CHECK(model.optimizer.optimizer().momentum == 0.5f);
        CHECK(model.optimizer.optimizer().weight_decay == 0.25f);
        CHECK(model.optimizer.optimizer().nesterov);
        comm.barrier();
    });
}

TEST_CASE("numbers that do not fit are refused, others come back to their last bit") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        two<optimizers::sgd<float>> model(comm, {'a'});
        const auto load = [&](const std::string& key, const std::string& value) {
            auto metadata = of_sgd;
            metadata[key] = value;
            comm.barrier();
            if (comm.rank() == 0)
                hvd::write_safetensors(folder / "c", std::vector{hvd::named("model.a", model.a)},
                                       metadata);
            comm.barrier();
            return hvd::load_checkpoint(folder / "c", model.optimizer).step;
        };
        CHECK(load("progress.step", "7") == 7);
        for (const char* bad : {"99999999999999999999999", "-1", "", "1.5", "0x10", " 7"})
            CHECK_THROWS_WITH_AS(load("progress.step", bad), doctest::Contains("is no number"),
                                 hvd::checkpoint_error);
        CHECK_THROWS_AS(load("optimizer.rate", "1e99"), hvd::checkpoint_error);
        CHECK(model.optimizer.optimizer().rate == 1);

        two<counting> saved(comm, {'a'}), loaded(comm, {'a'}, {{}, false, hvd::bfloat16(0), 0, 0});
        hvd::save_checkpoint(folder / "c", saved.optimizer, {});
        hvd::load_checkpoint(folder / "c", loaded.optimizer);
        const counting& numbers = loaded.optimizer.optimizer();
        CHECK(numbers.warm);
        CHECK(float(numbers.half) == 1.5f);
        CHECK(numbers.tiny == 1e-41f);
        CHECK(numbers.far == std::numeric_limits<std::int64_t>::min());
        auto metadata = hvd::safetensors_file(folder / "c").metadata();
        metadata["optimizer.warm"] = "2";
        comm.barrier();
        if (comm.rank() == 0)
            hvd::write_safetensors(folder / "c", std::vector{hvd::named("model.a", model.a)},
                                   metadata);
        comm.barrier();
        check_refused(folder / "c", loaded.optimizer, "has \"2\" as \"optimizer.warm\"");
        comm.barrier();
    });
}

TEST_CASE("slots of a parameter are there as a whole or not at all, with a count of its steps") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        using adam = optimizers::adam<float>;
        two<adam> model(comm, {'a', 'b'}), saved(comm, {'a', 'b'});
        std::vector<float> moments = {1, 2};
        std::vector<double> count = {3}, wrong = {-1};
        hvd::checkpoint_metadata of_adam = of_rate;
        of_adam["hvd.slots"] = "by name";
        for (const char* number : {"beta1", "beta2", "epsilon", "weight_decay"})
            of_adam["optimizer." + std::string(number)] = "0.5";
        const auto write =
            [&](const std::vector<std::pair<const char*, std::vector<float>*>>& slots,
                std::vector<double>* steps, const char* for_all = nullptr) {
                comm.barrier();
                auto metadata = of_adam;
                if (for_all != nullptr) metadata["optimizer.steps"] = for_all;
                std::vector<hvd::named_tensor> tensors = {hvd::named("model.a", model.a),
                                                          hvd::named("model.b", model.b)};
                for (const auto& [name, values] : slots)
                    tensors.push_back(hvd::named("optimizer." + std::string(name), *values));
                if (steps != nullptr) tensors.push_back(hvd::named("optimizer.steps.b", *steps));
                if (comm.rank() == 0) hvd::write_safetensors(folder / "c", tensors, metadata);
                comm.barrier();
            };
        const auto refused = [&](const char* reason) {
            check_refused(folder / "c", model.optimizer, reason);
            CHECK(model.optimizer.optimizer().mean.empty());
        };
        write({{"mean.b", &moments}}, &count);
        refused("\"b\" has the slot \"optimizer.steps.b\" and lacks \"optimizer.variance.b\"");
        write({}, &count);
        refused("has the slot \"optimizer.steps.b\" and lacks");
        write({{"mean.b", &moments}, {"variance.b", &moments}}, nullptr);
        refused("has the slot \"optimizer.variance.b\" and lacks \"optimizer.steps.b\"");
        write({{"mean.b", &moments}, {"variance.b", &moments}}, &wrong);
        refused("has -1 as \"optimizer.steps.b\", which is no number of steps");
        write({{"mean.b", &moments}}, nullptr, "4");
        refused("has the slot \"optimizer.mean.b\" and lacks \"optimizer.variance.b\"");
        write({}, nullptr, "4");
        refused("has 4 as \"optimizer.steps\" and no other slot of any parameter");
        write({{"mean.b", &moments}, {"variance.b", &moments}}, &count, "4");
        refused("has \"optimizer.steps\", which this optimizer has not");
        write({{"mean.b", &moments}, {"variance.b", &moments}}, nullptr, "1.5");
        refused("no number of steps");

        // A file of before has one count, which is that of the parameters with moments.
        write({{"mean.b", &moments}, {"variance.b", &moments}}, nullptr, "4");
        hvd::load_checkpoint(folder / "c", model.optimizer);
        CHECK(model.optimizer.optimizer().steps.of(0) == 0);
        CHECK(model.optimizer.optimizer().steps.of(1) == 4);
        write({{"mean.b", &moments}, {"variance.b", &moments}}, &count);
        hvd::load_checkpoint(folder / "c", model.optimizer);
        CHECK(model.optimizer.optimizer().steps.of(1) == 3);
        CHECK(model.optimizer.optimizer().mean[1] == moments);
        CHECK(model.optimizer.optimizer().mean[0].empty());

        saved.optimizer.optimizer().mean = {{1, 2}};
        saved.optimizer.optimizer().steps = {{1}};
        CHECK_THROWS_WITH_AS(hvd::save_checkpoint(folder / "d", saved.optimizer, {}),
                             doctest::Contains("lacks \"optimizer.variance.a\""),
                             hvd::checkpoint_error);
        saved.optimizer.optimizer().variance = {{1, 2}};
        saved.optimizer.optimizer().steps = {{1, 2}};
        CHECK_THROWS_WITH_AS(hvd::save_checkpoint(folder / "d", saved.optimizer, {}),
                             doctest::Contains("\"optimizer.steps.a\" has 2 elements"),
                             hvd::checkpoint_error);
        comm.barrier();
    });
}

TEST_CASE("state in memory of the user is loaded where it lies") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        std::vector<float> of_first(4), of_second(4);
        const auto over = [](std::vector<float>& flat) {
            return flat_momentum{{{flat.data()}, {flat.data() + 2}}};
        };
        two<flat_momentum> first(comm, {'a', 'b'}, over(of_first));
        two<flat_momentum> second(comm, {'a', 'b'}, over(of_second));
        first.optimizer.step();
        first.optimizer.step();
        hvd::save_checkpoint(folder / "c", first.optimizer, {});
        hvd::load_checkpoint(folder / "c", second.optimizer);
        CHECK(of_second == of_first);
        CHECK(of_second[3] == 150);
        comm.barrier();
    });
}

TEST_CASE("state that a checkpoint has not is gone after it is loaded") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        two<optimizers::adam<float>> saved(comm, {'a', 'b'}), loaded(comm, {'a', 'b'});
        hvd::save_checkpoint(folder / "c", saved.optimizer, {});
        loaded.optimizer.step();
        hvd::load_checkpoint(folder / "c", loaded.optimizer);
        loaded.optimizer.optimizer().for_each_slot([](const char* name, auto& slots) {
            INFO(name);
            for (const auto& slot : slots) CHECK(slot.empty());
        });
        comm.barrier();
    });
}

TEST_CASE("names that are hvd's own and text that is no UTF-8 are not written") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        two model(comm, {'a'});
        const auto refused = [&](const hvd::checkpoint_metadata& metadata, const char* reason) {
            CHECK_THROWS_WITH_AS(hvd::save_checkpoint(folder / "c", model.optimizer, {}, metadata),
                                 doctest::Contains(reason), hvd::checkpoint_error);
        };
        refused({{"progress.step", "1"}}, "\"progress.step\" in the metadata is hvd's own");
        refused({{"optimizer.rate", "1"}}, "hvd's own");
        refused({{"hvd.slots", "1"}}, "hvd's own");
        refused({{"k", "\xff\xfe"}}, "k is no UTF-8");
        refused({{"\xff", "v"}}, "a key of the metadata is no UTF-8");
        if (comm.rank() == 0)
            CHECK_THROWS_WITH_AS(
                hvd::write_safetensors(folder / "c", std::vector{hvd::named("\xff", model.a)}),
                doctest::Contains("the name of a tensor is no UTF-8"), hvd::checkpoint_error);
        CHECK_FALSE(std::filesystem::exists(folder / "c"));
        model.optimizer.optimizer().velocity = {{1, 2, 3}};
        refused({}, "\"optimizer.velocity.a\" has 3 elements, its parameter 2");
        model.optimizer.optimizer().velocity = {{1, 2}, {}, {1}};
        refused({}, "has 3 of \"velocity\" for 1 parameters");
        comm.barrier();
    });
}

namespace {

// A terminal: a mistake here would cost the machine a device that it shares.
struct own_device {
    own_device() {
        char name[64] = {};
        REQUIRE(::grantpt(number) == 0);
        REQUIRE(::unlockpt(number) == 0);
        REQUIRE(::ptsname_r(number, name, sizeof name) == 0);
        path = name;
    }
    own_device(const own_device&) = delete;
    ~own_device() { ::close(number); }

    const int number = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    std::string path;
};

}  // namespace

TEST_CASE("a path that is no regular file is neither read, waited for, nor replaced") {
    hvd_test::on_ranks([](communicator& comm) {
        const shared_folder folder(comm);
        two model(comm, {'a'});
        const std::string pipe = folder / "pipe";
        if (comm.rank() == 0) REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
        comm.barrier();
        check_refused(pipe, model.optimizer, "not a regular file");
        const own_device device;
        // Rank 0 writes the file of all.
        const std::string of_all = comm.copy_of_root(device.path);
        for (const std::string& path : {pipe, of_all})
            CHECK_THROWS_WITH_AS(hvd::save_checkpoint(path, model.optimizer, {}),
                                 doctest::Contains("is no regular file"), hvd::checkpoint_error);
        CHECK(std::filesystem::is_fifo(pipe));
        CHECK(std::filesystem::is_character_file(of_all));
        comm.barrier();
    });
}

}  // namespace checkpoint_contents_tests
