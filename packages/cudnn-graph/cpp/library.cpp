// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
#include "library.hpp"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace cudnn_graph {

namespace {

std::mutex load_mutex;
std::atomic<const Library*> current{nullptr};
std::atomic<bool> exiting{false};

template <typename Function>
void resolve(void* handle, const char* symbol, const std::string& path, Function& target) {
    target = reinterpret_cast<Function>(dlsym(handle, symbol));
    if (target == nullptr) {
        dlclose(handle);
        throw std::runtime_error(path + " has no symbol " + symbol + ": a cuDNN 9 library is needed");
    }
}

}  // namespace

void load_library(const std::string& path) {
    std::lock_guard<std::mutex> lock(load_mutex);
    if (const Library* loaded = current.load()) {
        if (loaded->path == path) {
            return;
        }
        throw std::runtime_error("libcudnn is already loaded from " + loaded->path + "; it cannot be replaced by " + path);
    }
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* reason = dlerror();
        throw std::runtime_error(reason != nullptr ? reason : "dlopen failed without a reason");
    }
    auto fresh = std::make_unique<Library>();
    fresh->path = path;
    resolve(handle, "cudnnGetVersion", path, fresh->get_version);
    resolve(handle, "cudnnGetErrorString", path, fresh->get_error_string);
    resolve(handle, "cudnnGetLastErrorString", path, fresh->get_last_error_string);
    resolve(handle, "cudnnCreate", path, fresh->create);
    resolve(handle, "cudnnDestroy", path, fresh->destroy);
    resolve(handle, "cudnnSetStream", path, fresh->set_stream);
    resolve(handle, "cudnnGetStream", path, fresh->get_stream);
    resolve(handle, "cudnnBackendCreateDescriptor", path, fresh->create_descriptor);
    resolve(handle, "cudnnBackendDestroyDescriptor", path, fresh->destroy_descriptor);
    resolve(handle, "cudnnBackendFinalize", path, fresh->finalize);
    resolve(handle, "cudnnBackendSetAttribute", path, fresh->set_attribute);
    resolve(handle, "cudnnBackendGetAttribute", path, fresh->get_attribute);
    resolve(handle, "cudnnBackendExecute", path, fresh->execute);
    fresh->get_cudart_version = reinterpret_cast<std::size_t (*)()>(dlsym(handle, "cudnnGetCudartVersion"));
    fresh->get_plan_workspace_size =
        reinterpret_cast<int (*)(void*, void*, void*, std::size_t*)>(dlsym(handle, "cudnnGetExecutionPlanWorkspaceSize"));
    // Kept for the life of the process: descriptors in static storage may still point into the library at exit.
    current.store(fresh.release());
}

const Library* loaded_library() { return current.load(); }

const Library& library() {
    const Library* loaded = current.load();
    if (loaded == nullptr) {
        throw std::runtime_error("libcudnn is not loaded");
    }
    return *loaded;
}

std::string last_error_string() {
    const Library* loaded = current.load();
    if (loaded == nullptr) {
        return std::string();
    }
    char text[4096] = {0};
    loaded->get_last_error_string(text, sizeof(text));
    text[sizeof(text) - 1] = 0;
    return std::string(text);
}

BackendError::BackendError(int status_, const char* call_, int descriptor_, int attribute_)
    : status(status_), call(call_), descriptor(descriptor_), attribute(attribute_), last_error(last_error_string()) {
    if (const Library* loaded = current.load()) {
        status_text = loaded->get_error_string(status);
    }
    message_ = call;
    if (descriptor >= 0) {
        message_ += " on a descriptor of type " + std::to_string(descriptor);
    }
    if (attribute >= 0) {
        message_ += ", attribute " + std::to_string(attribute);
    }
    message_ += ": status " + std::to_string(status) + " (" + status_text + ")";
    if (!last_error.empty()) {
        message_ += ": " + last_error;
    }
}

void begin_shutdown() { exiting.store(true); }

bool shutting_down() { return exiting.load(); }

}  // namespace cudnn_graph
