// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
//
// One backend descriptor of cuDNN with the lifetime of a C++ object.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace cudnn_graph {

class Descriptor {
  public:
    explicit Descriptor(int type);
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    void set(int name, int attribute_type, std::int64_t count, const void* elements);
    // Keeps the given descriptors alive as long as this one, or until the attribute is set again.
    void set_descriptors(int name, const std::vector<std::shared_ptr<Descriptor>>& children);
    void finalize();

    // How many elements the attribute has.
    std::int64_t count(int name, int attribute_type) const;
    // Fills at most `requested` elements and returns how many the attribute has.
    std::int64_t get(int name, int attribute_type, std::int64_t requested, void* elements) const;
    // Fills fresh descriptors of the given type from an attribute that holds descriptors.
    std::vector<std::shared_ptr<Descriptor>> get_descriptors(int name, int descriptor_type, std::int64_t requested) const;

    void* raw() const { return raw_; }
    int type() const { return type_; }
    bool finalized() const { return finalized_; }

  private:
    const int type_;
    void* raw_ = nullptr;
    bool finalized_ = false;
    std::map<int, std::vector<std::shared_ptr<Descriptor>>> children_;
};

}  // namespace cudnn_graph
