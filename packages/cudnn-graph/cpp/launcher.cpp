// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
#include "launcher.hpp"

#include <algorithm>

#include "context.hpp"

namespace cudnn_graph {

namespace {

constexpr std::int64_t kHost = -1;
constexpr std::int64_t kUnknown = -2;

void* to_pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

// Interned once and kept for the life of the process.
PyObject* interned(const char* name) { return PyUnicode_InternFromString(name); }

struct Names {
    PyObject* dtype = interned("dtype");
    PyObject* nbytes = interned("nbytes");
    PyObject* backend_handle = interned("_backend_handle");
    PyObject* context = interned("_context");
    PyObject* ordinal = interned("_ordinal");
};

const Names& names() {
    static const Names* instance = new Names();
    return *instance;
}

py::object checked(PyObject* owned) {
    if (owned == nullptr) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(owned);
}

py::object call(const py::object& method, PyObject* self) { return checked(PyObject_CallOneArg(method.ptr(), self)); }

py::object attribute(PyObject* object, PyObject* name) { return checked(PyObject_GetAttr(object, name)); }

std::int64_t integer(const py::object& value) {
    const long long number = PyLong_AsLongLong(value.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
    }
    return number;
}

void* address(const py::object& value) {
    void* pointer = PyLong_AsVoidPtr(value.ptr());
    if (pointer == nullptr && PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
    }
    return pointer;
}

}  // namespace

BoundPlan::BoundPlan(std::shared_ptr<Descriptor> plan, std::vector<Slot> slots, std::int64_t workspace_offset)
    : prepared_(std::move(plan), std::move(slots), workspace_offset) {
    for (const Slot& slot : prepared_.slots()) {
        keys_.push_back(py::int_(slot.uid));
    }
}

void BoundPlan::execute(std::uintptr_t handle, std::uintptr_t context, const py::dict& pointers, std::uintptr_t workspace, const Overrides* overrides) const {
    std::vector<void*> given(keys_.size(), nullptr);
    for (std::size_t i = 0; i < keys_.size(); ++i) {
        PyObject* value = PyDict_GetItemWithError(pointers.ptr(), keys_[i].ptr());
        if (value == nullptr) {
            if (PyErr_Occurred() != nullptr) {
                throw py::error_already_set();
            }
            continue;
        }
        if (PyBytes_Check(value)) {
            // The value of a scalar; the dict keeps the bytes alive during the call.
            given[i] = PyBytes_AS_STRING(value);
            continue;
        }
        given[i] = PyLong_AsVoidPtr(value);
        if (given[i] == nullptr && PyErr_Occurred() != nullptr) {
            throw py::error_already_set();
        }
    }
    py::gil_scoped_release release;
    prepared_.execute(to_pointer(handle), to_pointer(context), given, to_pointer(workspace), overrides);
}

std::size_t BoundPlan::workspace_size(std::uintptr_t handle, std::uintptr_t context, const Overrides& overrides) const {
    return prepared_.workspace_size(to_pointer(handle), to_pointer(context), overrides);
}

Launcher::Launcher(std::shared_ptr<BoundPlan> plan, py::dict keys, py::object key_type, std::vector<Requirement> requirements,
                   std::vector<py::object> tensor_types, py::object handle_type, std::int64_t ordinal, std::int64_t workspace)
    : plan_(std::move(plan)),
      keys_(std::move(keys)),
      key_type_(std::move(key_type)),
      requirements_(std::move(requirements)),
      tensor_types_(std::move(tensor_types)),
      handle_type_(std::move(handle_type)),
      ordinal_(ordinal),
      workspace_(workspace) {
    const std::vector<Slot>& slots = plan_->prepared().slots();
    for (const Requirement& need : requirements_) {
        const auto found = std::find_if(slots.begin(), slots.end(), [&](const Slot& slot) { return slot.uid == need.uid; });
        positions_.push_back(found == slots.end() ? -1 : found - slots.begin());
    }
    if (!tensor_types_.empty()) {
        const py::object& type = tensor_types_.front();
        methods_ = {type.attr("data_ptr"), type.attr("element_size"),   type.attr("get_device"),     type.attr("is_contiguous"),
                    type.attr("numel"),    type.attr("storage_offset"), type.attr("untyped_storage")};
    }
}

bool Launcher::is_tensor(PyObject* value) const {
    for (const py::object& type : tensor_types_) {
        if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == type.ptr()) {
            return true;
        }
    }
    return false;
}

bool Launcher::read_tensor(const Requirement& need, PyObject* value, void*& pointer, std::int64_t& device) const {
    const Names& n = names();
    const py::object dtype = attribute(value, n.dtype);
    bool fits = false;
    for (const py::object& allowed : need.dtypes) {
        fits = fits || dtype.ptr() == allowed.ptr();
    }
    if (!fits) {
        return false;
    }
    if (call(methods_.is_contiguous, value).ptr() != Py_True || integer(call(methods_.numel, value)) < need.span) {
        const py::object storage = call(methods_.untyped_storage, value);
        const std::int64_t total = integer(checked(PyObject_CallMethodNoArgs(storage.ptr(), n.nbytes)));
        const std::int64_t skipped = integer(call(methods_.storage_offset, value)) * integer(call(methods_.element_size, value));
        if (total - skipped < need.span_bytes) {
            return false;
        }
    }
    const std::int64_t found = integer(call(methods_.get_device, value));
    if ((found == kHost) != need.by_value) {
        return false;
    }
    if (!need.by_value) {
        if (device != kUnknown && device != found) {
            return false;
        }
        device = found;
    }
    pointer = address(call(methods_.data_ptr, value));
    return pointer != nullptr;
}

bool Launcher::read(PyObject* buffers, std::vector<void*>& pointers, std::int64_t& device) const {
    std::vector<char> seen(requirements_.size(), 0);
    std::size_t count = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t position = 0;
    while (PyDict_Next(buffers, &position, &key, &value)) {
        // Equal keys of other types (True, 1.0) are none.
        if (reinterpret_cast<PyObject*>(Py_TYPE(key)) != key_type_.ptr() && !PyLong_CheckExact(key) && !PyUnicode_CheckExact(key)) {
            return false;
        }
        PyObject* index = PyDict_GetItemWithError(keys_.ptr(), key);
        if (index == nullptr) {
            if (PyErr_Occurred() != nullptr) {
                throw py::error_already_set();
            }
            return false;
        }
        const auto i = static_cast<std::size_t>(PyLong_AsSsize_t(index));
        const Requirement& need = requirements_[i];
        void* pointer = nullptr;
        if (is_tensor(value)) {
            const py::object kept = py::reinterpret_borrow<py::object>(value);
            if (!read_tensor(need, value, pointer, device)) {
                return false;
            }
        } else if (PyLong_CheckExact(value) && !need.by_value) {
            pointer = PyLong_AsVoidPtr(value);
            if (pointer == nullptr) {
                PyErr_Clear();
                return false;
            }
        } else {
            return false;
        }
        count += seen[i] == 0;
        seen[i] = 1;
        if (positions_[i] >= 0) {
            pointers[static_cast<std::size_t>(positions_[i])] = pointer;
        }
    }
    return count == requirements_.size();
}

bool Launcher::execute(const py::object& buffers, const py::object& workspace, const py::object& given_handle, const py::object& settle,
                       const py::object& allocate) const {
    const Names& n = names();
    if (!PyDict_CheckExact(buffers.ptr())) {
        return false;
    }
    std::vector<void*> pointers(plan_->prepared().slots().size(), nullptr);
    std::int64_t device = kUnknown;
    if (!read(buffers.ptr(), pointers, device)) {
        return false;
    }

    const py::object handle = given_handle.is_none() ? settle(device == kUnknown ? current_context().ordinal : device) : given_handle;
    if (reinterpret_cast<PyObject*>(Py_TYPE(handle.ptr())) != handle_type_.ptr()) {
        return false;
    }
    const py::object backend_handle = attribute(handle.ptr(), n.backend_handle);
    const py::object ordinal = attribute(handle.ptr(), n.ordinal);
    const py::object context = attribute(handle.ptr(), n.context);
    if (backend_handle.is_none() || ordinal.is_none() || context.is_none() || integer(ordinal) != ordinal_ || (device != kUnknown && device != ordinal_)) {
        return false;
    }

    py::object memory = workspace;
    if (workspace.is_none() && workspace_ > 0) {
        memory = allocate(workspace_, handle);
    }
    void* scratch = nullptr;
    if (PyLong_CheckExact(memory.ptr())) {
        scratch = address(memory);
    } else if (!memory.is_none()) {
        if (!is_tensor(memory.ptr())) {
            return false;
        }
        if (workspace_ > 0) {
            if (integer(attribute(memory.ptr(), n.nbytes)) < workspace_) {
                return false;
            }
            scratch = address(call(methods_.data_ptr, memory.ptr()));
        }
    }
    void* const raw_handle = address(backend_handle);
    void* const raw_context = address(context);
    py::gil_scoped_release release;
    plan_->prepared().execute(raw_handle, raw_context, pointers, scratch, nullptr);
    return true;
}

}  // namespace cudnn_graph
