// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The hvd authors

// A tool that NVTX finds in this program keeps the ranges.

#include <map>
#include <string>
#include <vector>

#include <hvd/interop/nvtx.hpp>

#include "hvd_test.hpp"

namespace {

struct kept {
    std::map<nvtxRangeId_t, std::string> open;
    std::vector<std::string> begun, ended;
    std::vector<std::uint64_t> payloads;
} ranges;  // of one rank

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
    static std::string domain;
    domain = name;
    return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}

nvtxRangeId_t NVTX_API start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* e) {
    static nvtxRangeId_t last = 0;
    const std::string name =
        *reinterpret_cast<const std::string*>(domain) + ": " + e->message.ascii;
    ranges.begun.push_back(name);
    ranges.payloads.push_back(e->payload.ullValue);
    ranges.open[++last] = name;
    return last;
}

void NVTX_API end(nvtxDomainHandle_t, nvtxRangeId_t id) {
    ranges.ended.push_back(ranges.open.at(id));
    ranges.open.erase(id);
}

int NVTX_API initialize(NvtxGetExportTableFunc_t get_table) {
    const auto* callbacks =
        static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
    NvtxFunctionTable table = nullptr;
    unsigned int size = 0;
    if (callbacks == nullptr ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size))
        return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(&create_domain);
    *table[NVTX_CBID_CORE2_DomainRangeStartEx] = reinterpret_cast<NvtxFunctionPointer>(&start);
    *table[NVTX_CBID_CORE2_DomainRangeEnd] = reinterpret_cast<NvtxFunctionPointer>(&end);
    return 1;
}

// NVTX looks here for a tool in the program, before its first range.
const bool is_found = [] {
    InitializeInjectionNvtx2_fnptr = &initialize;
    return true;
}();

}  // namespace

TEST_CASE("NVTX has a range for each call, and for its phases where it packs") {
    REQUIRE(is_found);
    std::vector<float> x(10, 1), strided(20, 1);
    //! [nvtx_ranges]
    auto world = hvd::communicator<hvd::observed<hvd::threads, hvd::nvtx_ranges>>::self();
    world.allreduce(x, hvd::sum, {.name = "gradient"});
    world.barrier();
    //! [nvtx_ranges]
    CHECK(ranges.begun == std::vector<std::string>{"hvd: gradient", "hvd: barrier"});
    CHECK(ranges.ended == ranges.begun);
    CHECK(ranges.payloads.front() == 40);
    ranges = {};
    world.allreduce(hvd::view(strided.data(), hvd::shape(10), hvd::strides(2)), hvd::sum);
    CHECK(std::count(ranges.begun.begin(), ranges.begun.end(), "hvd: pack") == 1);
    CHECK(std::count(ranges.begun.begin(), ranges.begun.end(), "hvd: unpack") == 1);
    CHECK(ranges.ended.back() == "hvd: allreduce");
    CHECK(ranges.ended.size() == ranges.begun.size());
    CHECK_THROWS(world.broadcast(x, hvd::root{-1}));
    CHECK(ranges.open.empty());
}
