// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "engine.hpp"

// The bodies of an engine, which libhvd holds for the backends of threads_library.hpp and others.
namespace hvd::inline v0 {

template <class Backend, class Devices>
struct engine<Backend, Devices>::parts {
    parts(communicator<Backend>& comm, const engine_options& options, detail::device_units devices)
        : data(detail::duplicate_for_engine(comm, options)),
          links(data, detail::links_of(data)),
          core(detail::shared<detail::engine_core>::make(
              detail::shared<detail::session>(&detail::access::session_of(data)),
              data.local_size() == data.size(), options, [this] { links.wake(); })),
          thread(thread_with(std::move(devices))) {}

    static const detail::shared<detail::engine_core>& with(
        const detail::shared<detail::engine_core>& core, detail::device_units devices) {
        if (devices.self) core->use(std::move(devices));
        return core;
    }

    ~parts() {
        if (!thread) return;
        if (core->runner().driver().in_forked_child()) {
            (void)thread.release();  // the parent's: there is none here
            return;
        }
        const auto limit = detail::now() + core->data().options().destructor_timeout.nanoseconds;
        const bool unwinds = std::uncaught_exceptions() > 0;
        if (!unwinds) core->wait_idle(limit);
        const detail::message in_flight = core->pending_names();
        if (!unwinds && in_flight.empty()) {
            core->say_bye();
            core->wait_ended(limit);
        }
        constexpr const char* plain = "a rank has destroyed its engine";
        end(unwinds
                ? detail::text_or(plain, "an exception unwound on rank ", core->rank())
                : detail::text_or(plain, "rank ", core->rank(), " has destroyed its engine",
                                  in_flight.empty() ? "" : " with tensors in flight: ", in_flight));
    }

    // A thread that one rank is refused is an error of all.
    std::unique_ptr<detail::engine_thread> thread_with(detail::device_units devices) {
        auto& own = static_cast<detail::call_driver&>(detail::access::session_of(data));
        auto made = detail::run_on_all(own, "an engine", detail::never, [&] {
            return std::make_unique<detail::engine_thread>(with(core, std::move(devices)), links,
                                                           own.cpu);
        });
        made->start();
        return made;
    }

    // Tells the others, unless the engine has ended.
    void end(detail::message reason) {
        core->leave(std::move(reason));
        thread.reset();
        // Ranks that wait for this one learn it before it waits for them, with its devices.
        core->data().close("its engine was destroyed");
        core->runner().end_devices();
        try {
            core->run_ready();  // all calls are complete, so that no coroutine is forgotten
        } catch (...) {         // thrown by a coroutine: nobody is there to catch it
        }
    }

    communicator<Backend> data;
    detail::link_tree links;
    detail::shared<detail::engine_core> core;
    std::unique_ptr<detail::engine_thread> thread;
};

template <class Backend, class Devices>
engine<Backend, Devices>::engine(communicator<Backend>& comm, const engine_options& options,
                                 detail::device_units devices)
    : parts_(std::make_unique<parts>(comm, options, std::move(devices))) {}

template <class Backend, class Devices>
auto engine<Backend, Devices>::operator=(engine&&) noexcept -> engine& = default;

template <class Backend, class Devices>
engine<Backend, Devices>::~engine() = default;

template <class Backend, class Devices>
result<int> engine<Backend, Devices>::join() {
    struct joining : detail::queued_value<int> {
        detail::operation none{};
    };
    detail::engine_core& core = *parts_or_throw().core;
    detail::shared<joining> call;
    core.or_leave([&] {
        core.learn(detail::usual_reductions<float, double, float16, bfloat16, std::int32_t,
                                            std::int64_t, std::uint8_t, std::int8_t>());
        call = detail::shared<joining>::make();
        call->op = &call->none;
        core.join(call);
    });
    // Others go on with steps, whose answers this rank does not hear: what it knows is not theirs.
    if (core.question()) core.question()->take_answer();
    return result<int>(call);
}

template <class Backend, class Devices>
void engine<Backend, Devices>::retune(const engine_tuning& to) {
    parts_or_throw().core->retune(to);
}

template <class Backend, class Devices>
void engine<Backend, Devices>::fail(const std::exception_ptr& why) {
    parts_or_throw().core->leave(detail::text_or(
        detail::no_memory_for_text, "rank ", rank(),
        " failed: ", why ? detail::what_of(why) : detail::message::fixed("it gave no exception")));
}

template <class Backend, class Devices>
std::size_t engine<Backend, Devices>::run_ready() {
    return parts_or_throw().core->run_ready();
}

}  // namespace hvd::inline v0
