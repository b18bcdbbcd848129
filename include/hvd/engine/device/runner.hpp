// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <algorithm>
#include <memory>
#include <vector>

#include "../../device/arguments.hpp"
#include "../unit_runner.hpp"
#include "counts.hpp"
#include "neutral.hpp"
#include "packing.hpp"
#include "tensor_call.hpp"
#include "work_watch.hpp"

namespace hvd::inline v0::detail {

// The communicators of an engine's device tensors, which may be one.
struct engine_devices {
    std::shared_ptr<device_session> reducing, gathering, broadcasting;
    bool reduces_on_host = false;
    bool packs = false;  // all ranks have hvd's kernels

    const std::shared_ptr<device_session>& session_for(collective kind) const {
        switch (kind) {
            case collective::allgather:
            case collective::alltoall: return gathering;
            case collective::broadcast: return broadcasting;
            default: return reducing;
        }
    }
    template <class F>
    void each(F&& f) const {
        f(*reducing);
        if (gathering != reducing) f(*gathering);
        if (broadcasting != reducing && broadcasting != gathering) f(*broadcasting);
    }
};

// Enqueues the device tensors of an engine, on the own stream of its communicator. The ranks run
// the same units in the same order, so that the calls of their devices are matched. The small
// tensors of a unit are packed into one call. Its calls are one group, as those of a `fuse` are.
class device_runner {
public:
    explicit device_runner(engine_devices devices) : devices_(std::move(devices)) {}

    const engine_devices& devices() const { return devices_; }
    work_watch& watch() { return watch_; }

    // The functions by which an engine uses a runner.
    static device_units units_of(std::shared_ptr<device_runner> runner) {
        device_units units;
        units.self = std::move(runner);
        units.run = [](void* self, const unit_part& part) { of(self).run(part); };
        units.is_broken = [](const void* self) {
            bool broken = false;
            static_cast<const device_runner*>(self)->devices_.each(
                [&](const device_session& s) { broken = broken || s.broken(); });
            return broken;
        };
        units.give_up = [](void* self, std::string_view why) noexcept {
            of(self).devices_.each([&](device_session& s) { s.give_up(why); });
        };
        units.end = [](void* self) noexcept { of(self).end(); };
        units.end_calls_if = [](void* self, std::function<message()> reason) {
            of(self).devices_.each([&](device_session& s) { s.end_calls_if(reason); });
        };
        return units;
    }

private:
    static device_runner& of(void* self) { return *static_cast<device_runner*>(self); }

    void end() noexcept {
        if (!watch_.is_empty())
            devices_.each([](device_session& s) { s.give_up("its engine was destroyed"); });
        watch_.stop();
    }

    static device_tensor_call* tensor(const unit_part& part, std::size_t i) {
        return static_cast<device_tensor_call*>(part.calls[i]);
    }

    // Ranks may refuse a part together. After that, a rank that fails is at another call than the
    // others.
    void run(const unit_part& part) {
        const collective kind = part.unit[part.first].signature.call.kind;
        device_session& session = *devices_.session_for(kind);
        session.refuse_if_broken(name_of(kind));
        const time_point limit = session.limit_for(part.timeout);
        prepare_for_joined(part, session, limit);
        if (kind == collective::allgather || kind == collective::alltoall)
            learn_counts(part, limit);
        const bool packs = prepare_to_pack(part, session, limit);
        try {
            enqueue(part, session, limit, packs);
        } catch (...) {
            session.give_up(what_of(std::current_exception()));
            throw;
        }
    }

    // ---- ranks that have joined -----------------------------------------------------------------

    // All ranks know if some have joined. These prepare what they give, or say why they can't.
    void prepare_for_joined(const unit_part& part, device_session& session, time_point limit) {
        if (part.unit[part.first].contributors == session.size()) return;
        run_on_all(part.runner.driver(), "a device tensor while ranks have joined", limit, [&] {
            std::size_t longest = 0, room = 0;
            for (std::size_t i = part.first; i < part.end; ++i) {
                if (tensor(part, i) != nullptr) continue;
                const signature& s = part.unit[i].signature;
                refuse_if_unknown(part, i);
                longest = std::max(longest, std::size_t(s.bytes));
                room += in_whole_vectors(s.bytes);
            }
            if (longest == 0) return;
            const call_header& h = part.unit[part.first].signature.call;
            const device_session::inside turn(session);
            const current_device here(session.device(), session.rank());
            memory_.make_room(session, room);
            if (h.kind == collective::allreduce) memory_.prepare(session, h, longest);
        });
    }

    void refuse_if_unknown(const unit_part& part, std::size_t i) const {
        const agreed_tensor& t = part.unit[i];
        const call_header& h = t.signature.call;
        const auto refuse = [&](const char* why) {
            throw usage_error(part.runner.rank(),
                              text("hvd: rank ", part.runner.rank(), " has joined, and ", why, " '",
                                   t.name, "'"));
        };
        if (h.fused) refuse("does not know the device tensors of the group");
        if (h.id == dtype::user) refuse("does not know the element type of");
        if (h.kind == collective::allreduce && devices_.reduces_on_host &&
            part.runner.known_for(h) == nullptr)
            refuse("has never made a reduction like that of");
    }

    // The calls of tensors that this rank does not have.
    collective_call neutral_call(const unit_part& part, std::size_t i, std::size_t& offset) const {
        const signature& s = part.unit[i].signature;
        collective_call call;
        copy_header(call.entry, s.call);
        call.entry.dimensions = 0;
        call.element_bytes = element_bytes_of(s.call.id);
        call.out = memory_.results() + offset;
        call.in = call.out;
        if (s.call.kind == collective::allgather) {
            call.entry.count = 0;
            if (counts_are_needed_) call.counts = counts_;
            return call;
        }
        offset += in_whole_vectors(s.bytes);
        if (s.call.kind == collective::broadcast) return call;
        call.in = memory_.elements();
        if (const known_reduction* const known = part.runner.known_for(s.call);
            known != nullptr && devices_.reduces_on_host) {
            call.reduce = known->function;
            call.callable = &known->rounds;
        }
        return call;
    }

    static std::size_t in_whole_vectors(std::uint64_t bytes) {
        return std::size_t(bytes + 255) / 256 * 256;
    }

    // ---- counts ---------------------------------------------------------------------------------

    // The ranks learn how many elements each of them gives. If one has no room, all refuse.
    void learn_counts(const unit_part& part, time_point limit) {
        const agreed_tensor& t = part.unit[part.first];
        device_tensor_call* const own = tensor(part, part.first);
        const engine_counts numbers(part.runner.driver(), t, own, limit);
        numbers.refuse_if_too_many(t.name);
        part.runner.prepare(tensor_memory::device, [&] { take_counts(t, own, numbers); });
    }
    void take_counts(const agreed_tensor& t, device_tensor_call* own,
                     const engine_counts& numbers) {
        counts_ = numbers.from_each();
        counts_are_needed_ = t.signature.call.kind == collective::alltoall || !all_alike(counts_);
        if (own != nullptr) {
            own->counts = counts_;
            collective_call& call = own->calls.front();
            if (!counts_are_needed_) call.entry.count = counts_[0];
            else if (t.signature.call.kind == collective::allgather) call.counts = own->counts;
            else {
                call.counts = own->sent;
                call.receive_counts = own->counts;
            }
        }
    }
    // A rank that has joined gets the rows of the others, too.
    void make_room_for_rows(const call_header& h, device_session& session) {
        if (h.kind != collective::allgather) return;
        std::size_t all = 0;
        for (const std::size_t n : counts_) all += n;
        memory_.make_room(session, all * element_bytes_of(h.id));
    }
    static bool all_alike(const std::vector<std::size_t>& counts) {
        return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) ==
               counts.end();
    }

    // ---- small tensors --------------------------------------------------------------------------

    // True if tensors of the part are packed. All ranks decide alike, and make room together.
    bool prepare_to_pack(const unit_part& part, device_session& session, time_point limit) {
        const agreed_tensor& first = part.unit[part.first];
        if (!devices_.packs || session.size() == 1 || !first.signature.fuses ||
            first.contributors != session.size())
            return false;
        calls_.clear();
        part.runner.prepare(tensor_memory::device, [&] {
            for (std::size_t i = part.first; i < part.end; ++i)
                for (const collective_call& call : tensor(part, i)->calls) calls_.push_back(call);
        });
        const std::size_t bytes = unit_packing::bytes_of_small(calls_);
        if (bytes > 0 && !packing_.has_room(bytes))
            run_on_all(part.runner.driver(), "the buffer of small device tensors", limit, [&] {
                const device_session::inside turn(session);
                const current_device here(session.device(), session.rank());
                packing_.make_room(session, bytes);
            });
        return bytes > 0;
    }

    // ---- the work -------------------------------------------------------------------------------

    void enqueue(const unit_part& part, device_session& session, time_point limit, bool packs) {
        const device_session::inside turn(session);
        const current_device here(session.device(), session.rank());
        const cudaStream_t stream = session.own_stream();
        const call_header& h = part.unit[part.first].signature.call;
        const char* const label = name_of(h.kind);
        calls_.clear();
        std::size_t offset = 0;
        for (std::size_t i = part.first; i < part.end; ++i) {
            device_tensor_call* const t = tensor(part, i);
            if (t == nullptr) {
                make_room_for_rows(part.unit[i].signature.call, session);
                calls_.push_back(neutral_call(part, i, offset));
            } else {
                if (t->point) t->point.make_wait(stream, session.rank());
                calls_.insert(calls_.end(), t->calls.begin(), t->calls.end());
            }
        }
        for (collective_call& call : calls_) call.entry.postscale *= part.factor;
        if (packs) packing_.pack(calls_, stream, session.rank());
        if (!calls_.empty()) enqueue_calls(session, calls_, label, stream, limit);
        if (packs) packing_.unpack(stream, session.rank());
        for (std::size_t i = part.first; i < part.end; ++i) {
            device_tensor_call* const t = tensor(part, i);
            if (t == nullptr) continue;
            t->point.record(stream, session.rank());
            t->enqueued = quick_now();
            t->under_way = device_request(devices_.session_for(h.kind), std::move(t->point), label,
                                          std::min(limit, t->due));
        }
    }

    engine_devices devices_;
    neutral_memory memory_;
    unit_packing packing_;
    std::vector<collective_call> calls_;
    std::vector<std::size_t> counts_;
    bool counts_are_needed_ = false;
    work_watch watch_;
};

}  // namespace hvd::inline v0::detail
