// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// Measures a step in which few rows of a table have a gradient, for a small and a large table in
// turn. The time should depend on the rows, not on the table.
#include <deque>

#include <hvd/train.hpp>

#include "support/program.hpp"

namespace {

struct sparse_options : bench::options {
    std::vector<std::size_t> tables{10000, 1000000};
    std::size_t columns = 64, rows = 256;
};

template <class Comm>
class table_step {
public:
    table_step(Comm& comm, std::size_t rows, const sparse_options& o)
        : comm_(comm),
          o_(o),
          rows_(rows),
          table_(rows * o.columns),
          gradient_(table_.size()),
          optimizer_(comm, hvd::optimizers::sgd<float>{.rate = 0}) {
        optimizer_.register_sparse("table", table_, gradient_, o.columns);
        mine_.values.assign(o.rows * o.columns, 1);
    }

    bench::candidate candidate() {
        return {"", [this] { step(); }, [] {}, [this] { return wrong(); }};
    }

private:
    // Ranks have different rows, and others in each step.
    void choose() {
        mine_.indices.clear();
        for (std::size_t i = 0; i < o_.rows; ++i)
            mine_.indices.push_back(std::int64_t((steps_ * 7919 + i * 104729) * 2 % rows_) +
                                    comm_.rank() % 2);
        ++steps_;
    }

    void step() {
        choose();
        optimizer_.zero_gradients();
        optimizer_.gradient_ready(0, mine_);
        optimizer_.step();
    }

    // Each row of this rank has got a mean of ones and zeros.
    std::size_t wrong() const {
        std::size_t count = 0;
        for (const std::int64_t row : mine_.indices)
            for (std::size_t c = 0; c < o_.columns; ++c)
                count += gradient_[std::size_t(row) * o_.columns + c] <= 0;
        return count;
    }

    Comm& comm_;
    const sparse_options& o_;
    std::size_t rows_, steps_ = 0;
    std::vector<float> table_, gradient_;
    hvd::sparse_rows<float> mine_;
    hvd::distributed_optimizer<Comm, hvd::optimizers::sgd<float>> optimizer_;
};

}  // namespace

int main(int argc, char** argv) {
    sparse_options o;
    CLI::App app("A step in which few rows of a table have a gradient.", "sparse");
    bench::add_options(app, o);
    app.add_option("--tables", o.tables, "rows of the tables")->check(CLI::Range(2, 100000000));
    app.add_option("--columns", o.columns)->check(CLI::PositiveNumber);
    app.add_option("--rows", o.rows, "rows of each rank with a gradient")
        ->check(CLI::PositiveNumber);

    return bench::run_program(app, o, argc, argv, [&](auto& comm) {
        using Comm = std::remove_reference_t<decltype(comm)>;
        bench::report out(comm, "sparse", o);
        std::deque<table_step<Comm>> tables;
        std::vector<bench::candidate> candidates;
        for (const std::size_t rows : o.tables)
            candidates.push_back(tables.emplace_back(comm, rows, o).candidate());
        const auto timings = bench::interleave(comm, std::span(candidates), o.work);
        out.print("# {} rows of {} floats have a gradient on each rank\n\n{:>12} {:>10} {:>7}\n",
                  o.rows, o.columns, "table's rows", "ms", "#wrong");
        for (std::size_t t = 0; t < timings.size(); ++t) {
            out.print("{:>12} {:>10.3f} {:>7}\n", o.tables[t], timings[t].time * 1e3,
                      timings[t].wrong);
            out.add({{"table_rows", o.tables[t]},
                     {"rows", o.rows},
                     {"columns", o.columns},
                     {"ms", timings[t].time * 1e3},
                     {"wrong", timings[t].wrong}});
        }
        out.write();
    });
}
