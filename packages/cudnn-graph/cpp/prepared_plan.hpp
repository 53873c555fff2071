// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
//
// An execution plan together with everything a run of it needs but the caller's pointers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "descriptor.hpp"

namespace cudnn_graph {

// Where the address of one tensor of the plan comes from at execute.
struct Slot {
    enum class Source {
        caller,     // the caller's pointer
        host,       // `host` below, unless the caller gives a pointer: a scalar whose value is known
        alias,      // the address of tensor `source_uid` plus `offset` bytes
        workspace,  // `offset` bytes into the workspace
    };

    std::int64_t uid = 0;
    std::string name;
    std::int64_t alignment = 1;  // bytes the plan was built for; 1 = not checked
    Source source = Source::caller;
    std::string host;
    std::int64_t source_uid = 0;
    std::int64_t offset = 0;
    bool listed = true;  // false: the plan has no such tensor; the caller's pointer is only what views of it start from
};

// Shapes and strides that replace those of the plan in one call.
struct Overrides {
    std::vector<std::int64_t> uids;
    std::vector<std::vector<std::int64_t>> shapes;
    std::vector<std::vector<std::int64_t>> strides;
};

class MissingBuffer : public std::exception {
  public:
    MissingBuffer(std::int64_t uid, const std::string& name);
    const char* what() const noexcept override { return message_.c_str(); }

  private:
    std::string message_;
};

class MisalignedBuffer : public std::exception {
  public:
    MisalignedBuffer(const Slot& slot, const void* pointer);
    const char* what() const noexcept override { return message_.c_str(); }

  private:
    std::string message_;
};

// Immutable after construction: `execute` may run in several threads at once, each with a handle of its own.
class PreparedPlan {
  public:
    // The plan's own workspace starts `workspace_offset` bytes into the caller's.
    PreparedPlan(std::shared_ptr<Descriptor> plan, std::vector<Slot> slots, std::int64_t workspace_offset);

    // pointers: one per slot in the order of `slots()`, null where the caller gives none.
    void execute(void* handle, void* context, const std::vector<void*>& pointers, void* workspace, const Overrides* overrides) const;

    // Bytes of workspace the plan needs for other shapes; throws std::runtime_error where the library cannot tell.
    std::size_t workspace_size(void* handle, void* context, const Overrides& overrides) const;

    const std::vector<Slot>& slots() const { return slots_; }
    const std::shared_ptr<Descriptor>& plan() const { return plan_; }

  private:
    void fill(Descriptor& pack, const std::vector<void*>& pointers, void* workspace, const Overrides* overrides) const;
    void resolve(std::vector<void*>& pointers, void* workspace) const;
    void drop_unlisted(std::vector<void*>& pointers) const;

    const std::shared_ptr<Descriptor> plan_;
    std::vector<Slot> slots_;  // sorted by uid
    std::vector<std::int64_t> uids_;
    std::vector<std::int64_t> listed_uids_;
    std::vector<std::size_t> alias_source_;  // index of the aliased slot
    const std::int64_t workspace_offset_;
};

// Names in cudnn_graph.constants and the numbers this file uses for them.
std::vector<std::pair<const char*, int>> prepared_plan_constants();

}  // namespace cudnn_graph
