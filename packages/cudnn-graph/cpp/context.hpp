// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
//
// CUDA contexts of the calling thread, through libcuda.so.1 opened at run time.
#pragma once

namespace cudnn_graph {

// A context and the device it belongs to; context is null (and ordinal -1) where there is no driver or no device.
struct Context {
    void* context = nullptr;
    int ordinal = -1;
};

// The calling thread's context, or, where the thread has none yet, the primary context of device 0 (not made current).
Context current_context();

// The primary context of a device, kept alive for the life of the process; null where there is none.
void* primary_context(int ordinal);

// Makes a context current for the life of the guard, if it is not already, and puts the thread's own back. A null context
// means "whatever the thread has", and the primary context of device 0 for a thread that has none: cuDNN's
// runtime-compiled engines launch through the driver, which refuses a thread that never touched CUDA.
class ContextGuard {
  public:
    explicit ContextGuard(void* context);
    ~ContextGuard();
    ContextGuard(const ContextGuard&) = delete;
    ContextGuard& operator=(const ContextGuard&) = delete;

  private:
    bool pushed_ = false;
};

}  // namespace cudnn_graph
