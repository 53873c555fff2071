// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
#include "context.hpp"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

namespace cudnn_graph {

namespace {

struct Driver {
    bool usable = false;
    int (*init)(unsigned) = nullptr;
    int (*ctx_get_current)(void**) = nullptr;
    int (*ctx_push)(void*) = nullptr;
    int (*ctx_pop)(void**) = nullptr;
    int (*ctx_get_device)(int*) = nullptr;
    int (*device_get)(int*, int) = nullptr;
    int (*primary_retain)(void**, int) = nullptr;
};

Driver open_driver() {
    Driver driver;
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        return driver;
    }
    driver.init = reinterpret_cast<int (*)(unsigned)>(dlsym(handle, "cuInit"));
    driver.ctx_get_current = reinterpret_cast<int (*)(void**)>(dlsym(handle, "cuCtxGetCurrent"));
    driver.ctx_push = reinterpret_cast<int (*)(void*)>(dlsym(handle, "cuCtxPushCurrent_v2"));
    driver.ctx_pop = reinterpret_cast<int (*)(void**)>(dlsym(handle, "cuCtxPopCurrent_v2"));
    driver.ctx_get_device = reinterpret_cast<int (*)(int*)>(dlsym(handle, "cuCtxGetDevice"));
    driver.device_get = reinterpret_cast<int (*)(int*, int)>(dlsym(handle, "cuDeviceGet"));
    driver.primary_retain = reinterpret_cast<int (*)(void**, int)>(dlsym(handle, "cuDevicePrimaryCtxRetain"));
    driver.usable = driver.init != nullptr && driver.ctx_get_current != nullptr && driver.ctx_push != nullptr && driver.ctx_pop != nullptr &&
                    driver.ctx_get_device != nullptr && driver.device_get != nullptr && driver.primary_retain != nullptr && driver.init(0) == 0;
    return driver;
}

const Driver& driver() {
    static const Driver instance = open_driver();
    return instance;
}

void* thread_context() {
    void* context = nullptr;
    if (driver().usable && driver().ctx_get_current(&context) != 0) {
        context = nullptr;
    }
    return context;
}

}  // namespace

void* primary_context(int ordinal) {
    if (!driver().usable || ordinal < 0) {
        return nullptr;
    }
    static std::mutex mutex;
    static std::map<int, void*> retained;
    std::lock_guard<std::mutex> lock(mutex);
    auto found = retained.find(ordinal);
    if (found != retained.end()) {
        return found->second;
    }
    int device = 0;
    void* context = nullptr;
    if (driver().device_get(&device, ordinal) != 0 || driver().primary_retain(&context, device) != 0) {
        return nullptr;
    }
    retained[ordinal] = context;
    return context;
}

Context current_context() {
    Context result;
    result.context = thread_context();
    if (result.context == nullptr) {
        result.context = primary_context(0);
        result.ordinal = result.context != nullptr ? 0 : -1;
        return result;
    }
    int device = -1;
    if (driver().ctx_get_device(&device) == 0) {
        // A device number of the driver API is the ordinal it was got from.
        result.ordinal = device;
    }
    return result;
}

ContextGuard::ContextGuard(void* context) {
    void* mine = thread_context();
    if (context == nullptr) {
        if (mine != nullptr) {
            return;
        }
        context = primary_context(0);
        if (context == nullptr) {
            return;
        }
    }
    if (context == mine) {
        return;
    }
    const int status = driver().ctx_push(context);
    if (status != 0) {
        throw std::runtime_error("cuCtxPushCurrent failed with CUDA error " + std::to_string(status) + ": the context of the handle's device is not usable");
    }
    pushed_ = true;
}

ContextGuard::~ContextGuard() {
    if (pushed_) {
        void* popped = nullptr;
        driver().ctx_pop(&popped);
    }
}

}  // namespace cudnn_graph
