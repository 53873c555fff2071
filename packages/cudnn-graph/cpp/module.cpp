// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
//
// Python bindings: cudnn_graph._ext.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "context.hpp"
#include "descriptor.hpp"
#include "launcher.hpp"
#include "library.hpp"
#include "prepared_plan.hpp"

using namespace cudnn_graph;

namespace {

// Numbers of cudnnBackendAttributeType_t whose element is not a 4-byte enum.
enum AttributeType {
    kHandle = 0,
    kBoolean = 2,
    kInt64 = 3,
    kFloat = 4,
    kDouble = 5,
    kVoidPtr = 6,
    kBackendDescriptor = 15,
    kChar = 24,
    kFraction = 26,
};

void* to_pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }
std::uintptr_t to_address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

template <typename Element, typename Given = Element>
void set_elements(Descriptor& descriptor, int name, int attribute_type, const py::handle& value) {
    std::vector<Element> elements;
    if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
        for (const py::handle& item : value) {
            elements.push_back(static_cast<Element>(item.cast<Given>()));
        }
    } else {
        elements.push_back(static_cast<Element>(value.cast<Given>()));
    }
    descriptor.set(name, attribute_type, static_cast<std::int64_t>(elements.size()), elements.data());
}

void set_attribute(Descriptor& descriptor, int name, int attribute_type, const py::object& value) {
    switch (attribute_type) {
        case kBackendDescriptor: {
            std::vector<std::shared_ptr<Descriptor>> children;
            if (py::isinstance<Descriptor>(value)) {
                children.push_back(value.cast<std::shared_ptr<Descriptor>>());
            } else {
                children = value.cast<std::vector<std::shared_ptr<Descriptor>>>();
            }
            descriptor.set_descriptors(name, children);
            return;
        }
        case kHandle:
        case kVoidPtr: {
            std::vector<void*> pointers;
            if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
                for (const py::handle& item : value) {
                    pointers.push_back(to_pointer(item.cast<std::uintptr_t>()));
                }
            } else if (PyBytes_Check(value.ptr())) {
                // The value of a constant, which the library copies.
                pointers.push_back(PyBytes_AS_STRING(value.ptr()));
            } else {
                pointers.push_back(to_pointer(value.cast<std::uintptr_t>()));
            }
            descriptor.set(name, attribute_type, static_cast<std::int64_t>(pointers.size()), pointers.data());
            return;
        }
        case kChar: {
            const std::string text = value.cast<std::string>();
            descriptor.set(name, attribute_type, static_cast<std::int64_t>(text.size()), text.data());
            return;
        }
        case kBoolean:
            set_elements<std::uint8_t, bool>(descriptor, name, attribute_type, value);
            return;
        case kInt64:
            set_elements<std::int64_t>(descriptor, name, attribute_type, value);
            return;
        case kFloat:
            set_elements<float>(descriptor, name, attribute_type, value);
            return;
        case kDouble:
            set_elements<double>(descriptor, name, attribute_type, value);
            return;
        case kFraction:
            throw py::type_error("attributes of type FRACTION are not used by any operation of this package");
        default:
            set_elements<std::int32_t>(descriptor, name, attribute_type, value);
    }
}

template <typename Element, typename Returned = Element>
py::list get_elements(const Descriptor& descriptor, int name, int attribute_type, std::int64_t requested) {
    std::vector<Element> elements(static_cast<std::size_t>(requested));
    const std::int64_t available = descriptor.get(name, attribute_type, requested, elements.data());
    py::list result;
    for (std::int64_t i = 0; i < std::min(available, requested); ++i) {
        result.append(py::cast(static_cast<Returned>(elements[static_cast<std::size_t>(i)])));
    }
    return result;
}

py::object get_attribute(const Descriptor& descriptor, int name, int attribute_type, std::int64_t requested) {
    if (attribute_type == kBackendDescriptor) {
        throw py::type_error("use get_descriptors for an attribute that holds descriptors");
    }
    if (attribute_type == kFraction) {
        throw py::type_error("attributes of type FRACTION are not used by any operation of this package");
    }
    if (requested < 0) {
        requested = descriptor.count(name, attribute_type);
    }
    switch (attribute_type) {
        case kHandle:
        case kVoidPtr:
            return get_elements<std::uintptr_t>(descriptor, name, attribute_type, requested);
        case kChar: {
            std::string text(static_cast<std::size_t>(requested), '\0');
            const std::int64_t available = descriptor.get(name, attribute_type, requested, &text[0]);
            text.resize(static_cast<std::size_t>(std::min(available, requested)));
            return py::bytes(text);
        }
        case kBoolean:
            return get_elements<std::uint8_t, bool>(descriptor, name, attribute_type, requested);
        case kInt64:
            return get_elements<std::int64_t>(descriptor, name, attribute_type, requested);
        case kFloat:
            return get_elements<float>(descriptor, name, attribute_type, requested);
        case kDouble:
            return get_elements<double>(descriptor, name, attribute_type, requested);
        default:
            return get_elements<std::int32_t>(descriptor, name, attribute_type, requested);
    }
}

// Not a py::object: that would drop its reference after the interpreter is gone.
PyObject* backend_error_type = nullptr;

void set_backend_error(const BackendError& error) {
    py::object instance = py::reinterpret_borrow<py::object>(backend_error_type)(error.what());
    instance.attr("status") = error.status;
    instance.attr("status_text") = error.status_text;
    instance.attr("last_error") = error.last_error;
    instance.attr("call") = error.call;
    instance.attr("descriptor_type") = error.descriptor >= 0 ? py::object(py::int_(error.descriptor)) : py::object(py::none());
    instance.attr("attribute") = error.attribute >= 0 ? py::object(py::int_(error.attribute)) : py::object(py::none());
    PyErr_SetObject(backend_error_type, instance.ptr());
}

}  // namespace

PYBIND11_MODULE(_ext, module) {
    module.doc() = "Thin layer over the backend descriptor API of libcudnn.so.9, which is opened at run time.";

    backend_error_type = PyErr_NewExceptionWithDoc(
        "cudnn_graph._ext.BackendError",
        "A cuDNN call failed. Attributes: status (int), status_text, last_error (cuDNN's own text), call, descriptor_type and attribute (int or None).",
        PyExc_RuntimeError, nullptr);
    if (backend_error_type == nullptr) {
        throw py::error_already_set();
    }
    module.attr("BackendError") = py::reinterpret_borrow<py::object>(backend_error_type);
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) {
                std::rethrow_exception(pointer);
            }
        } catch (const BackendError& error) {
            set_backend_error(error);
        } catch (const MissingBuffer& error) {
            PyErr_SetString(PyExc_ValueError, error.what());
        } catch (const MisalignedBuffer& error) {
            PyErr_SetString(PyExc_ValueError, error.what());
        }
    });

    // The numbers of the C ABI that this layer knows by itself; a test compares them with cudnn_graph.constants.
    py::dict constants;
    constants["Type.HANDLE"] = int(kHandle);
    constants["Type.BOOLEAN"] = int(kBoolean);
    constants["Type.INT64"] = int(kInt64);
    constants["Type.FLOAT"] = int(kFloat);
    constants["Type.DOUBLE"] = int(kDouble);
    constants["Type.VOID_PTR"] = int(kVoidPtr);
    constants["Type.BACKEND_DESCRIPTOR"] = int(kBackendDescriptor);
    constants["Type.CHAR"] = int(kChar);
    constants["Type.FRACTION"] = int(kFraction);
    for (const auto& [name, number] : prepared_plan_constants()) {
        constants[name] = number;
    }
    module.attr("constants") = constants;

    module.def("load", &load_library, py::arg("path"), py::call_guard<py::gil_scoped_release>(),
               "Open libcudnn from a file or a soname. RuntimeError with the loader's reason when that fails.");
    module.def(
        "loaded_path", []() -> py::object { return loaded_library() != nullptr ? py::object(py::str(loaded_library()->path)) : py::object(py::none()); },
        "The path given to load(), or None.");
    module.def("version", [] { return library().get_version(); }, "cudnnGetVersion, for example 91900.");
    module.def(
        "cudart_version", [] { return library().get_cudart_version != nullptr ? library().get_cudart_version() : std::size_t{0}; },
        "cudnnGetCudartVersion: the CUDA runtime the library was built for; 0 where the library does not say.");
    module.def("error_string", [](int status) { return std::string(library().get_error_string(status)); }, py::arg("status"));
    module.def("last_error_string", &last_error_string);

    module.def(
        "create_handle",
        [](int ordinal) {
            const Context context = ordinal >= 0 ? Context{primary_context(ordinal), ordinal} : current_context();
            ContextGuard guard(context.context);
            void* handle = nullptr;
            check(library().create(&handle), "cudnnCreate");
            return py::make_tuple(to_address(handle), context.ordinal, to_address(context.context));
        },
        py::arg("ordinal") = -1,
        "cudnnCreate on a device (-1: the calling thread's current one). Returns (handle, ordinal, context); the current device stays as it was.");
    module.def(
        "destroy_handle",
        [](std::uintptr_t handle, std::uintptr_t context) {
            if (shutting_down()) {
                return;
            }
            ContextGuard guard(to_pointer(context));
            check(library().destroy(to_pointer(handle)), "cudnnDestroy");
        },
        py::arg("handle"), py::arg("context") = 0);
    module.def(
        "set_stream",
        [](std::uintptr_t handle, std::uintptr_t stream, std::uintptr_t context) {
            ContextGuard guard(to_pointer(context));
            check(library().set_stream(to_pointer(handle), to_pointer(stream)), "cudnnSetStream");
        },
        py::arg("handle"), py::arg("stream"), py::arg("context") = 0);
    module.def(
        "get_stream",
        [](std::uintptr_t handle) {
            void* stream = nullptr;
            check(library().get_stream(to_pointer(handle), &stream), "cudnnGetStream");
            return to_address(stream);
        },
        py::arg("handle"));
    module.def(
        "current_context",
        [] {
            const Context context = current_context();
            return py::make_tuple(to_address(context.context), context.ordinal);
        },
        "(context, ordinal) of the calling thread; device 0's primary context for a thread that has none; (0, -1) without a driver or device.");
    module.def("primary_context", [](int ordinal) { return to_address(primary_context(ordinal)); }, py::arg("ordinal"));
    module.def("begin_shutdown", &begin_shutdown, "From here on nothing is destroyed through libcudnn any more; called at interpreter exit.");

    py::class_<Descriptor, std::shared_ptr<Descriptor>>(module, "Descriptor", "One backend descriptor; destroyed with the Python object.")
        .def(py::init<int>(), py::arg("type"))
        .def("set", &set_attribute, py::arg("name"), py::arg("attribute_type"), py::arg("value"),
             "Set an attribute: one value or a list; ints for enums, pointers and handles, Descriptor objects, str for CHAR. bytes for VOID_PTR: their address.")
        .def("get", &get_attribute, py::arg("name"), py::arg("attribute_type"), py::arg("count") = -1,
             "The attribute's elements as a list (bytes for CHAR); count -1 asks for all.")
        .def("count", &Descriptor::count, py::arg("name"), py::arg("attribute_type"))
        .def("get_descriptors", &Descriptor::get_descriptors, py::arg("name"), py::arg("descriptor_type"), py::arg("count"),
             py::call_guard<py::gil_scoped_release>(), "Up to `count` descriptors held by an attribute, in fresh descriptors of the given type.")
        .def(
            "finalize",
            [](const std::shared_ptr<Descriptor>& self, std::uintptr_t context) {
                ContextGuard guard(to_pointer(context));
                self->finalize();
                return self;
            },
            py::arg("context") = 0, py::call_guard<py::gil_scoped_release>(), "Finalize, with the given CUDA context current; returns the descriptor.")
        .def_property_readonly("type", &Descriptor::type)
        .def_property_readonly("finalized", &Descriptor::finalized)
        .def_property_readonly("address", [](const Descriptor& self) { return to_address(self.raw()); });

    module.def(
        "execute",
        [](std::uintptr_t handle, const Descriptor& plan, const Descriptor& pack, std::uintptr_t context) {
            ContextGuard guard(to_pointer(context));
            check(library().execute(to_pointer(handle), plan.raw(), pack.raw()), "cudnnBackendExecute");
        },
        py::arg("handle"), py::arg("plan"), py::arg("variant_pack"), py::arg("context") = 0, py::call_guard<py::gil_scoped_release>(),
        "cudnnBackendExecute with descriptors made by hand.");

    py::enum_<Slot::Source>(module, "Source", "Where the address of a tensor comes from at execute.")
        .value("CALLER", Slot::Source::caller)
        .value("HOST", Slot::Source::host)
        .value("ALIAS", Slot::Source::alias)
        .value("WORKSPACE", Slot::Source::workspace);
    py::class_<Slot>(module, "Slot")
        .def(py::init([](std::int64_t uid, const std::string& name, std::int64_t alignment, Slot::Source source, const py::bytes& host,
                         std::int64_t source_uid, std::int64_t offset, bool listed) {
                 Slot slot;
                 slot.uid = uid;
                 slot.name = name;
                 slot.alignment = alignment;
                 slot.source = source;
                 slot.host = host;
                 slot.source_uid = source_uid;
                 slot.offset = offset;
                 slot.listed = listed;
                 return slot;
             }),
             py::arg("uid"), py::arg("name") = "", py::arg("alignment") = 1, py::arg("source") = Slot::Source::caller, py::arg("host") = py::bytes(),
             py::arg("source_uid") = 0, py::arg("offset") = 0, py::arg("listed") = true)
        .def_readonly("uid", &Slot::uid)
        .def_readonly("name", &Slot::name)
        .def_readonly("alignment", &Slot::alignment)
        .def_readonly("source", &Slot::source);
    py::class_<Overrides>(module, "Overrides", "Shapes and strides of some tensors for one call of execute.")
        .def(py::init([](std::vector<std::int64_t> uids, std::vector<std::vector<std::int64_t>> shapes, std::vector<std::vector<std::int64_t>> strides) {
                 if (uids.size() != shapes.size() || uids.size() != strides.size()) {
                     throw py::value_error("override_uids, override_shapes and override_strides need the same length, got " + std::to_string(uids.size()) +
                                           ", " + std::to_string(shapes.size()) + " and " + std::to_string(strides.size()));
                 }
                 return Overrides{std::move(uids), std::move(shapes), std::move(strides)};
             }),
             py::arg("uids"), py::arg("shapes"), py::arg("strides"));
    py::class_<BoundPlan, std::shared_ptr<BoundPlan>>(module, "PreparedPlan", "A finalized execution plan and the sources of its pointers; safe to execute from several threads.")
        .def(py::init<std::shared_ptr<Descriptor>, std::vector<Slot>, std::int64_t>(), py::arg("plan"), py::arg("slots"), py::arg("workspace_offset") = 0)
        .def("execute", &BoundPlan::execute, py::arg("handle"), py::arg("context"), py::arg("pointers"), py::arg("workspace") = 0,
             py::arg("overrides") = nullptr,
             "Run on the handle's stream. pointers: {uid: address, or the bytes of a scalar}; uids the plan does not know are passed over.")
        .def("workspace_size", &BoundPlan::workspace_size, py::arg("handle"), py::arg("context"), py::arg("overrides"),
             py::call_guard<py::gil_scoped_release>(), "Bytes of workspace for other shapes. RuntimeError where the library cannot tell (below 9.23).")
        .def_property_readonly("uids", [](const BoundPlan& self) {
            std::vector<std::int64_t> uids;
            for (const Slot& slot : self.prepared().slots()) {
                uids.push_back(slot.uid);
            }
            return uids;
        });
    py::class_<Requirement>(module, "Requirement", "What one tensor needs of its buffer.")
        .def(py::init([](std::int64_t uid, bool by_value, std::int64_t span, std::int64_t span_bytes, std::vector<py::object> dtypes) {
                 return Requirement{uid, by_value, span, span_bytes, std::move(dtypes)};
             }),
             py::arg("uid"), py::arg("by_value"), py::arg("span"), py::arg("span_bytes"), py::arg("dtypes"));
    py::class_<Launcher>(module, "Launcher", "Runs a plan from a dict of buffers that are all as expected.")
        .def(py::init<std::shared_ptr<BoundPlan>, py::dict, py::object, std::vector<Requirement>, std::vector<py::object>, py::object, std::int64_t,
                      std::int64_t>(),
             py::arg("plan"), py::arg("keys"), py::arg("key_type"), py::arg("requirements"), py::arg("tensor_types"), py::arg("handle_type"),
             py::arg("ordinal"), py::arg("workspace"))
        .def("execute", &Launcher::execute, py::arg("buffers"), py::arg("workspace"), py::arg("handle"), py::arg("settle"), py::arg("allocate"),
             "True when the plan was submitted. False: something is not as expected and nothing was done.");
}
