// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
#include "descriptor.hpp"

#include "library.hpp"

namespace cudnn_graph {

namespace {
constexpr int kBackendDescriptor = 15;  // CUDNN_TYPE_BACKEND_DESCRIPTOR
}

Descriptor::Descriptor(int type) : type_(type) { check(library().create_descriptor(type, &raw_), "cudnnBackendCreateDescriptor", type); }

Descriptor::~Descriptor() {
    if (raw_ != nullptr && !shutting_down()) {
        library().destroy_descriptor(raw_);
    }
}

void Descriptor::set(int name, int attribute_type, std::int64_t count, const void* elements) {
    check(library().set_attribute(raw_, name, attribute_type, count, elements), "cudnnBackendSetAttribute", type_, name);
}

void Descriptor::set_descriptors(int name, const std::vector<std::shared_ptr<Descriptor>>& children) {
    std::vector<void*> raw;
    raw.reserve(children.size());
    for (const auto& child : children) {
        raw.push_back(child->raw());
    }
    set(name, kBackendDescriptor, static_cast<std::int64_t>(raw.size()), raw.data());
    children_[name] = children;
}

void Descriptor::finalize() {
    check(library().finalize(raw_), "cudnnBackendFinalize", type_);
    finalized_ = true;
}

std::int64_t Descriptor::count(int name, int attribute_type) const { return get(name, attribute_type, 0, nullptr); }

std::int64_t Descriptor::get(int name, int attribute_type, std::int64_t requested, void* elements) const {
    std::int64_t available = 0;
    check(library().get_attribute(raw_, name, attribute_type, requested, &available, elements), "cudnnBackendGetAttribute", type_, name);
    return available;
}

std::vector<std::shared_ptr<Descriptor>> Descriptor::get_descriptors(int name, int descriptor_type, std::int64_t requested) const {
    std::vector<std::shared_ptr<Descriptor>> filled;
    std::vector<void*> raw;
    for (std::int64_t i = 0; i < requested; ++i) {
        filled.push_back(std::make_shared<Descriptor>(descriptor_type));
        raw.push_back(filled.back()->raw());
    }
    const std::int64_t available = get(name, kBackendDescriptor, requested, raw.data());
    if (available < requested) {
        filled.resize(static_cast<std::size_t>(available));
    }
    for (auto& descriptor : filled) {
        descriptor->finalized_ = true;
    }
    return filled;
}

}  // namespace cudnn_graph
