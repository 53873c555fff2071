// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
#include "prepared_plan.hpp"

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "context.hpp"
#include "library.hpp"

namespace cudnn_graph {

namespace {

constexpr int kVariantPack = 16;  // CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR
constexpr int kTypeInt64 = 3;
constexpr int kTypeVoidPtr = 6;
constexpr int kUniqueIds = 1000;
constexpr int kDataPointers = 1001;
constexpr int kWorkspace = 1003;
constexpr int kOverrideUniqueIds = 1010;
constexpr int kOverrideShapes = 1011;
constexpr int kOverrideStrides = 1012;

}  // namespace

MissingBuffer::MissingBuffer(std::int64_t uid, const std::string& name)
    : message_("missing a buffer for tensor uid " + std::to_string(uid) + " ('" + name + "')") {}

MisalignedBuffer::MisalignedBuffer(const Slot& slot, const void* pointer) {
    char address[32];
    std::snprintf(address, sizeof(address), "%p", pointer);
    message_ = "the buffer for tensor uid " + std::to_string(slot.uid) + " ('" + slot.name + "') starts at " + address + ", which is not a multiple of " +
               std::to_string(slot.alignment) + " bytes as the plan needs; pass a copy of it (for example tensor.clone())";
}

PreparedPlan::PreparedPlan(std::shared_ptr<Descriptor> plan, std::vector<Slot> slots, std::int64_t workspace_offset)
    : plan_(std::move(plan)), slots_(std::move(slots)), workspace_offset_(workspace_offset) {
    std::sort(slots_.begin(), slots_.end(), [](const Slot& a, const Slot& b) { return a.uid < b.uid; });
    for (const Slot& slot : slots_) {
        if (!uids_.empty() && uids_.back() == slot.uid) {
            throw std::invalid_argument("tensor uid " + std::to_string(slot.uid) + " ('" + slot.name + "') is given twice");
        }
        uids_.push_back(slot.uid);
        if (slot.listed) {
            listed_uids_.push_back(slot.uid);
        }
    }
    alias_source_.resize(slots_.size(), 0);
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].source != Slot::Source::alias) {
            continue;
        }
        const auto found = std::lower_bound(uids_.begin(), uids_.end(), slots_[i].source_uid);
        if (found == uids_.end() || *found != slots_[i].source_uid) {
            throw std::invalid_argument("tensor uid " + std::to_string(slots_[i].uid) + " is a view of uid " + std::to_string(slots_[i].source_uid) +
                                        ", which is not in the plan");
        }
        alias_source_[i] = static_cast<std::size_t>(found - uids_.begin());
        if (slots_[alias_source_[i]].source == Slot::Source::alias) {
            throw std::invalid_argument("tensor uid " + std::to_string(slots_[i].uid) + " is a view of a view; give the offset from the first tensor");
        }
    }
}

void PreparedPlan::resolve(std::vector<void*>& pointers, void* workspace) const {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const Slot& slot = slots_[i];
        switch (slot.source) {
            case Slot::Source::caller:
                if (pointers[i] == nullptr) {
                    throw MissingBuffer(slot.uid, slot.name);
                }
                break;
            case Slot::Source::host:
                if (pointers[i] == nullptr) {
                    pointers[i] = const_cast<char*>(slot.host.data());
                }
                break;
            case Slot::Source::workspace:
                pointers[i] = static_cast<char*>(workspace) + slot.offset;
                break;
            case Slot::Source::alias:
                break;
        }
    }
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const Slot& slot = slots_[i];
        if (slot.source == Slot::Source::alias) {
            pointers[i] = static_cast<char*>(pointers[alias_source_[i]]) + slot.offset;
        }
        if (slot.alignment > 1 && reinterpret_cast<std::uintptr_t>(pointers[i]) % static_cast<std::uintptr_t>(slot.alignment) != 0) {
            throw MisalignedBuffer(slot, pointers[i]);
        }
    }
}

void PreparedPlan::drop_unlisted(std::vector<void*>& pointers) const {
    if (listed_uids_.size() == uids_.size()) {
        return;
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].listed) {
            pointers[kept++] = pointers[i];
        }
    }
    pointers.resize(kept);
}

void PreparedPlan::fill(Descriptor& pack, const std::vector<void*>& pointers, void* workspace, const Overrides* overrides) const {
    const auto count = static_cast<std::int64_t>(listed_uids_.size());
    pack.set(kUniqueIds, kTypeInt64, count, listed_uids_.data());
    pack.set(kDataPointers, kTypeVoidPtr, count, pointers.data());
    pack.set(kWorkspace, kTypeVoidPtr, 1, &workspace);
    if (overrides != nullptr) {
        // NOTE: for these two the array of elements itself is a std::vector<std::vector<int64_t>>, in the layout of libstdc++, and the count is 1.
        pack.set(kOverrideUniqueIds, kTypeInt64, static_cast<std::int64_t>(overrides->uids.size()), overrides->uids.data());
        pack.set(kOverrideShapes, kTypeVoidPtr, 1, &overrides->shapes);
        pack.set(kOverrideStrides, kTypeVoidPtr, 1, &overrides->strides);
    }
    pack.finalize();
}

void PreparedPlan::execute(void* handle, void* context, const std::vector<void*>& given, void* workspace, const Overrides* overrides) const {
    std::vector<void*> pointers = given;
    resolve(pointers, workspace);
    drop_unlisted(pointers);
    void* plan_workspace = workspace == nullptr ? nullptr : static_cast<char*>(workspace) + workspace_offset_;

    ContextGuard guard(context);
    // cuDNN lets nobody change a finalized descriptor, so a variant pack serves one call.
    Descriptor pack(kVariantPack);
    fill(pack, pointers, plan_workspace, overrides);
    check(library().execute(handle, plan_->raw(), pack.raw()), "cudnnBackendExecute");
}

std::size_t PreparedPlan::workspace_size(void* handle, void* context, const Overrides& overrides) const {
    if (library().get_plan_workspace_size == nullptr) {
        throw std::runtime_error("the workspace for other shapes can be asked of cuDNN 9.23 and newer only");
    }
    ContextGuard guard(context);
    Descriptor pack(kVariantPack);
    fill(pack, std::vector<void*>(listed_uids_.size(), nullptr), nullptr, &overrides);
    std::size_t bytes = 0;
    check(library().get_plan_workspace_size(handle, plan_->raw(), pack.raw(), &bytes), "cudnnGetExecutionPlanWorkspaceSize");
    return bytes + static_cast<std::size_t>(workspace_offset_);
}

std::vector<std::pair<const char*, int>> prepared_plan_constants() {
    return {
        {"Desc.VARIANT_PACK", kVariantPack},
        {"Type.INT64", kTypeInt64},
        {"Type.VOID_PTR", kTypeVoidPtr},
        {"Attr.VARIANT_PACK_UNIQUE_IDS", kUniqueIds},
        {"Attr.VARIANT_PACK_DATA_POINTERS", kDataPointers},
        {"Attr.VARIANT_PACK_WORKSPACE", kWorkspace},
        {"Attr.VARIANT_PACK_OVERRIDE_UNIQUE_IDS", kOverrideUniqueIds},
        {"Attr.VARIANT_PACK_OVERRIDE_SHAPES", kOverrideShapes},
        {"Attr.VARIANT_PACK_OVERRIDE_STRIDES", kOverrideStrides},
    };
}

}  // namespace cudnn_graph
