// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
//
// From Python's objects to a run of a prepared plan.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "prepared_plan.hpp"

namespace cudnn_graph {

namespace py = pybind11;

// The plan with its uids as Python ints, so that a call looks pointers up in the caller's dict without making objects.
class BoundPlan {
  public:
    BoundPlan(std::shared_ptr<Descriptor> plan, std::vector<Slot> slots, std::int64_t workspace_offset);

    void execute(std::uintptr_t handle, std::uintptr_t context, const py::dict& pointers, std::uintptr_t workspace, const Overrides* overrides) const;
    std::size_t workspace_size(std::uintptr_t handle, std::uintptr_t context, const Overrides& overrides) const;

    const PreparedPlan& prepared() const { return prepared_; }

  private:
    const PreparedPlan prepared_;
    std::vector<py::object> keys_;
};

// What one tensor needs of its buffer.
struct Requirement {
    std::int64_t uid = 0;
    bool by_value = false;
    std::int64_t span = 0;        // elements from the first to the last one addressed
    std::int64_t span_bytes = 0;  // the same in bytes
    std::vector<py::object> dtypes;
};

// Runs a plan straight from the caller's dictionary of buffers when everything in it is as expected; it says so when it is not, so that the caller
// can find out what is wrong. Nothing has been launched then.
class Launcher {
  public:
    // keys: {graph tensor, name or uid: index into requirements}. tensor_types: exact types of buffers, a class and subclasses that override none of
    // its methods. ordinal: the plan's device.
    Launcher(std::shared_ptr<BoundPlan> plan, py::dict keys, py::object key_type, std::vector<Requirement> requirements, std::vector<py::object> tensor_types,
             py::object handle_type, std::int64_t ordinal, std::int64_t workspace);

    // handle None: settle(ordinal) gives one, with its stream set. workspace None: allocate(bytes, handle) gives one.
    bool execute(const py::object& buffers, const py::object& workspace, const py::object& handle, const py::object& settle, const py::object& allocate) const;

  private:
    bool read(PyObject* buffers, std::vector<void*>& pointers, std::int64_t& device) const;
    bool read_tensor(const Requirement& need, PyObject* value, void*& pointer, std::int64_t& device) const;
    bool is_tensor(PyObject* value) const;

    // Methods of the buffers' class, looked up once: data_ptr() and so on of exactly the types above.
    struct Methods {
        py::object data_ptr, element_size, get_device, is_contiguous, numel, storage_offset, untyped_storage;
    };

    const std::shared_ptr<BoundPlan> plan_;
    const py::dict keys_;
    const py::object key_type_;
    const std::vector<Requirement> requirements_;
    const std::vector<py::object> tensor_types_;
    const py::object handle_type_;
    const std::int64_t ordinal_;
    const std::int64_t workspace_;
    Methods methods_;
    std::vector<std::ptrdiff_t> positions_;  // of each requirement among the plan's slots, -1: the plan does not use it
};

}  // namespace cudnn_graph
