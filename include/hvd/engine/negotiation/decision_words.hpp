// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <optional>

#include "message.hpp"
#include "numbers.hpp"

namespace hvd::inline v0::detail {

// Decisions in messages: what the root writes, and every other rank reads and passes on.

inline agreed_unit unit_of(const std::vector<ready_tensor>& unit, const tensor_numbers& numbers) {
    agreed_unit result;
    for (const ready_tensor& t : unit) {
        const numbered_tensor& n = numbers.at(t.number);
        result.push_back({n.name, n.signature, t.contributors});
    }
    return result;
}

inline void write_unit(message_writer& out, const std::vector<ready_tensor>& unit) {
    out.add(std::uint64_t(unit.size()));
    for (const ready_tensor& t : unit) out.add(t.number).add(t.contributors);
}
inline ready_tensor read_ready(message_reader& in, int size) {
    const auto number = std::uint32_t(in.number(UINT32_MAX));
    return {number, int(in.number(std::uint64_t(size)))};
}
inline const numbered_tensor& known_tensor(const message_reader& in, const tensor_numbers& numbers,
                                           std::uint32_t number) {
    const numbered_tensor* const known = numbers.find(number);
    if (known == nullptr) in.refuse("no tensor has this number");
    return *known;
}
// A unit of an older generation is only read over.
inline agreed_unit read_unit(message_reader& in, const tensor_numbers& numbers, int size,
                             bool is_old) {
    agreed_unit unit;
    for (std::size_t n = in.count(); n > 0; --n) {
        const ready_tensor t = read_ready(in, size);
        if (is_old) continue;
        const numbered_tensor& known = known_tensor(in, numbers, t.number);
        unit.push_back({known.name, known.signature, t.contributors});
    }
    return unit;
}

// The units that are to run, or are predicted.
inline decision read_units(engine_word w, message_reader& in, const tensor_numbers& numbers,
                           int size, bool is_old) {
    decision d;
    d.kind = w == engine_word::run ? decision::what::run : decision::what::predict;
    for (std::size_t n = w == engine_word::run ? 1 : in.count(); n > 0; --n)
        d.units.push_back(read_unit(in, numbers, size, is_old));
    return d;
}

inline void write_refusal(message_writer& out, const decision& d) {
    out.begin(engine_word::refuse).add(std::string_view(d.name)).add(d.ranks);
    out.add(std::uint64_t(d.differs)).add(std::string_view(d.text));
    out.add(std::uint64_t(d.values.size()));
    for (const auto& [rank, value] : d.values) out.add(rank).add(std::string_view(value));
}
inline decision read_refusal(message_reader& in, int size) {
    decision d;
    d.kind = decision::what::refuse;
    d.name = in.text();
    d.ranks = in.ranks(size);
    d.differs = field(in.number(std::uint64_t(field::none)));
    d.text = in.text();
    for (std::size_t n = in.count(); n > 0; --n) {
        const int rank = in.rank(size);
        d.values.emplace_back(rank, std::string(in.text()));
    }
    return d;
}

inline decision refusal_of(std::string_view name, const rank_set& by, std::string_view why) {
    decision d;
    d.kind = decision::what::refuse;
    d.name = name;
    d.ranks = by;
    d.text = why;
    return d;
}
inline decision disagreement_of(std::string_view name, field differs,
                                const std::vector<signature_group>& groups) {
    std::map<int, std::string> values;
    for (const signature_group& g : groups)
        for (const auto& [first, last] : g.ranks.ranges())
            for (int r = first; r <= last; ++r) values[r] = print_value(g.signature, differs);
    decision d = refusal_of(name, {}, "");
    d.differs = differs;
    d.values = {values.begin(), values.end()};
    return d;
}
// The reason why a tensor does not run: a rank refused it, or ranks disagree.
inline std::optional<decision> objection_to(std::string_view name,
                                            const std::vector<signature_group>& groups) {
    for (const signature_group& g : groups)
        if (g.signature.call.refused)
            return refusal_of(
                name, g.ranks,
                text(g.ranks.print(), " refused it: ", std::string_view(g.signature.call.text)));
    if (const field f = difference_of(groups); f != field::none)
        return disagreement_of(name, f, groups);
    return {};
}
// Who has not submitted a tensor.
inline decision report_of(std::string_view name, std::string_view who, const rank_set& ranks) {
    decision d;
    d.kind = decision::what::missing;
    d.name = name;
    d.text = who;
    d.ranks = ranks;
    return d;
}
inline void write_report(message_writer& out, const decision& d) {
    out.begin(engine_word::missing).add(std::string_view(d.name)).add(std::string_view(d.text));
    out.add(d.ranks);
}
inline decision read_report(message_reader& in, int size) {
    const std::string_view name = in.text(), who = in.text();
    return report_of(name, who, in.ranks(size));
}

// Why a rank ends the engine, perhaps for the sake of others. Rank -1: all ranks are done.
inline decision end_of(int rank, std::string_view why, const rank_set& culprits) {
    decision d;
    d.kind = decision::what::ended;
    d.rank = rank;
    d.text = why;
    d.ranks = culprits;
    return d;
}
inline void write_end(message_writer& out, const decision& d) {
    out.begin(engine_word::ended).add(d.rank + 1).add(std::string_view(d.text)).add(d.ranks);
}
inline decision read_end(message_reader& in, int size) {
    const int rank = int(in.number(std::uint64_t(size))) - 1;
    const std::string_view why = in.text();
    return end_of(rank, why, in.ranks(size));
}
inline message in_vain(const rank_set& done, std::string_view name) {
    return text(done.print(),
                done.size() == 1 ? " has destroyed its engine" : " have destroyed their engines",
                ", and other ranks have submitted '", name, "'");
}

}  // namespace hvd::inline v0::detail
