// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors
#pragma once

#include "../../standard.hpp"  // first: an older standard is told at once

#include <unordered_map>

#include "announced_tensor.hpp"

namespace hvd::inline v0::detail {

// The tensors that have a number, by which ranks speak of them: the response cache. Horovod:
// `HOROVOD_CACHE_CAPACITY`.
class tensor_numbers {
public:
    using table = std::map<std::uint32_t, numbered_tensor>;

    const table& all() const { return by_number_; }
    std::size_t size() const { return by_number_.size(); }
    bool has(std::uint32_t number) const { return by_number_.count(number) != 0; }
    const numbered_tensor& at(std::uint32_t number) const { return by_number_.at(number); }
    const numbered_tensor* find(std::uint32_t number) const {
        const auto found = by_number_.find(number);
        return found == by_number_.end() ? nullptr : &found->second;
    }

    // The number of a tensor that is the same as before; 0 if it has none.
    std::uint32_t number_of(const std::string& name, const signature& mine) const {
        const auto found = by_name_.find(name);
        if (found == by_name_.end()) return 0;
        const signature& known = by_number_.at(found->second).signature;
        const bool same = announced_tensor::alike(known, mine) && mine.priority <= known.priority &&
                          mine.fuses == known.fuses;
        return same ? found->second : 0;
    }
    const signature& of(const std::string& name) const {
        return by_number_.at(by_name_.at(name)).signature;
    }

    void define(std::uint32_t number, const std::string& name, const signature& s) {
        forget(name);
        by_number_[number] = {name, s};
        by_name_[name] = number;
    }
    void forget(const std::string& name) {
        const auto found = by_name_.find(name);
        if (found == by_name_.end()) return;
        by_number_.erase(found->second);
        by_name_.erase(found);
    }
    void clear() {
        by_number_.clear();
        by_name_.clear();
    }

private:
    table by_number_;
    std::unordered_map<std::string, std::uint32_t> by_name_;
};

}  // namespace hvd::inline v0::detail
