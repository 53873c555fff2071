// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
//
// The table of functions taken from libcudnn.so.9 at run time. Nothing here needs a header of CUDA or cuDNN: every
// object of theirs is an opaque pointer and every enum an int.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

namespace cudnn_graph {

struct Library {
    std::string path;

    std::size_t (*get_version)();
    const char* (*get_error_string)(int);
    void (*get_last_error_string)(char*, std::size_t);
    int (*create)(void**);
    int (*destroy)(void*);
    int (*set_stream)(void*, void*);
    int (*get_stream)(void*, void**);
    int (*create_descriptor)(int, void**);
    int (*destroy_descriptor)(void*);
    int (*finalize)(void*);
    int (*set_attribute)(void*, int, int, std::int64_t, const void*);
    int (*get_attribute)(void*, int, int, std::int64_t, std::int64_t*, void*);
    int (*execute)(void*, void*, void*);
    // Null where the library does not have them.
    std::size_t (*get_cudart_version)();
    int (*get_plan_workspace_size)(void*, void*, void*, std::size_t*);
};

// Opens the file and resolves the functions. A second call with the same path does nothing; another path is an error,
// because descriptors of one library must never reach the other. Throws std::runtime_error.
void load_library(const std::string& path);

// The loaded library, or null.
const Library* loaded_library();

// The loaded library; throws std::runtime_error when there is none.
const Library& library();

// cuDNN's own text about its last error in this thread; empty when it has none.
std::string last_error_string();

// A cuDNN call returned something else than success.
class BackendError : public std::exception {
  public:
    // descriptor and attribute are -1 where the call has none.
    BackendError(int status, const char* call, int descriptor = -1, int attribute = -1);
    const char* what() const noexcept override { return message_.c_str(); }

    const int status;
    const std::string call;
    const int descriptor;
    const int attribute;
    std::string status_text;
    std::string last_error;

  private:
    std::string message_;
};

inline void check(int status, const char* call, int descriptor = -1, int attribute = -1) {
    if (status != 0) {
        throw BackendError(status, call, descriptor, attribute);
    }
}

// After this no destructor calls into libcudnn or the driver any more: at interpreter exit the CUDA driver may already
// be shutting down, and the process's memory is about to go anyway.
void begin_shutdown();
bool shutting_down();

}  // namespace cudnn_graph
