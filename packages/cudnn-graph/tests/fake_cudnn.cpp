// Copyright 2026 The cudnn for Hopper authors
// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for libcudnn.so.9: keeps the attributes it is given, answers queries with made-up engines, and writes down what it is asked to execute.
//
// Engines of every operation graph: 0 (no knobs), 1 (knobs 2 and 14), 2 (fails to finalize a plan), 3 (fails to compile its kernel).
// Heuristic A proposes 2, 1, 3; B proposes 0; FALLBACK proposes 1, 0. A plan of engine e needs 1000 * e bytes of workspace.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Attribute {
    int type = 0;
    std::int64_t count = 0;
    std::vector<char> bytes;
};

struct Descriptor {
    int type;
    bool finalized = false;
    std::int64_t engine = -1;
    std::map<int, Attribute> attributes;
    std::vector<std::vector<std::int64_t>> shapes, strides;
};

struct Handle {
    void* stream = nullptr;
};

thread_local std::string last_error;
std::mutex log_mutex;
std::string log_text;
std::int64_t alive = 0;

enum { kEngine = 2, kConfig = 3, kHeuristic = 4, kPlan = 5, kKnobChoice = 7, kKnobInfo = 8, kGraph = 15, kVariantPack = 16, kTensor = 17, kReduction = 21 };

std::size_t width(int type) {
    switch (type) {
        case 2: case 24: return 1;
        case 0: case 3: case 5: case 6: case 15: return 8;
        default: return 4;
    }
}

int fail(int status, const std::string& text) {
    last_error = text;
    return status;
}

template <typename Element>
std::vector<Element> elements(const Descriptor& d, int name) {
    std::vector<Element> out;
    const auto found = d.attributes.find(name);
    if (found != d.attributes.end()) {
        out.resize(static_cast<std::size_t>(found->second.count));
        std::memcpy(out.data(), found->second.bytes.data(), found->second.bytes.size());
    }
    return out;
}

template <typename Element>
int answer(const std::vector<Element>& values, std::int64_t requested, std::int64_t* count, void* out) {
    *count = static_cast<std::int64_t>(values.size());
    for (std::int64_t i = 0; i < requested && i < *count; ++i) {
        static_cast<Element*>(out)[i] = values[static_cast<std::size_t>(i)];
    }
    return 0;
}

std::vector<std::int64_t> proposals(int mode) {
    switch (mode) {
        case 3: return {2, 1, 3};
        case 1: return {0};
        case 2: return {1, 0};
        default: return {};
    }
}

// Two knobs of engine 1; the second has no public name.
const std::vector<std::pair<int, std::int64_t>> kKnobs = {{2, 5}, {3, 1}, {14, 3}};

template <typename Element>
void put(Descriptor* d, int name, int type, std::vector<Element> values) {
    Attribute a;
    a.type = type;
    a.count = static_cast<std::int64_t>(values.size());
    a.bytes.resize(values.size() * sizeof(Element));
    std::memcpy(a.bytes.data(), values.data(), a.bytes.size());
    d->attributes[name] = a;
}

std::string list(const std::vector<std::int64_t>& values) {
    std::ostringstream out;
    out << "[";
    for (std::size_t i = 0; i < values.size(); ++i) out << (i ? ", " : "") << values[i];
    out << "]";
    return out.str();
}

std::string lists(const std::vector<std::vector<std::int64_t>>& values) {
    std::string out = "[";
    for (std::size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + list(values[i]);
    return out + "]";
}

}  // namespace

extern "C" {

std::size_t cudnnGetVersion() {
    const char* given = std::getenv("FAKE_CUDNN_VERSION");
    return given != nullptr ? static_cast<std::size_t>(std::atoll(given)) : 91900;
}

const char* cudnnGetErrorString(int status) { return status == 0 ? "FAKE_SUCCESS" : status < 4000 ? "FAKE_REFUSED" : "FAKE_FAILED"; }

void cudnnGetLastErrorString(char* text, std::size_t size) { std::strncpy(text, last_error.c_str(), size); }

int cudnnCreate(void** handle) {
    *handle = new Handle();
    return 0;
}

int cudnnDestroy(void* handle) {
    delete static_cast<Handle*>(handle);
    return 0;
}

int cudnnSetStream(void* handle, void* stream) {
    static_cast<Handle*>(handle)->stream = stream;
    std::lock_guard<std::mutex> lock(log_mutex);
    log_text += "{\"stream\": " + std::to_string(reinterpret_cast<std::uintptr_t>(stream)) + "}\n";
    return 0;
}

int cudnnGetStream(void* handle, void** stream) {
    *stream = static_cast<Handle*>(handle)->stream;
    return 0;
}

int cudnnBackendCreateDescriptor(int type, void** out) {
    auto* d = new Descriptor();
    d->type = type;
    *out = d;
    __atomic_add_fetch(&alive, 1, __ATOMIC_SEQ_CST);
    return 0;
}

int cudnnBackendDestroyDescriptor(void* raw) {
    delete static_cast<Descriptor*>(raw);
    __atomic_sub_fetch(&alive, 1, __ATOMIC_SEQ_CST);
    return 0;
}

int cudnnBackendSetAttribute(void* raw, int name, int type, std::int64_t count, const void* data) {
    auto* d = static_cast<Descriptor*>(raw);
    if (d->finalized) return fail(2000, "the descriptor is finalized");
    if (d->type == kVariantPack && (name == 1011 || name == 1012)) {
        (name == 1011 ? d->shapes : d->strides) = *static_cast<const std::vector<std::vector<std::int64_t>>*>(data);
        return 0;
    }
    Attribute a;
    a.type = type;
    a.count = count;
    const char* bytes = static_cast<const char*>(data);
    a.bytes.assign(bytes, bytes + width(type) * static_cast<std::size_t>(count));
    d->attributes[name] = a;
    return 0;
}

int cudnnBackendFinalize(void* raw) {
    auto* d = static_cast<Descriptor*>(raw);
    if (d->type == kTensor) {
        for (std::int64_t stride : elements<std::int64_t>(*d, 903)) {
            if (stride < 0) return fail(2000, "a stride is negative");
        }
    }
    if (d->type == kReduction && elements<std::int32_t>(*d, 1600).at(0) >= 5) return fail(3000, "no such reduction");
    if (d->type == kGraph) {
        // A graph that starts with a concatenation is one that no engine takes.
        for (void* op : elements<void*>(*d, 801)) {
            if (static_cast<Descriptor*>(op)->type == 27) return fail(3001, "the combination is not supported");
        }
    }
    if (d->type == kEngine) d->engine = elements<std::int64_t>(*d, 1301).at(0);
    if (d->type == kConfig) {
        d->engine = static_cast<Descriptor*>(elements<void*>(*d, 300).at(0))->engine;
        for (void* choice : elements<void*>(*d, 302)) {
            if (elements<std::int64_t>(*static_cast<Descriptor*>(choice), 601).at(0) > 100) return fail(3000, "the knob's value is out of range");
        }
    }
    if (d->type == kPlan) {
        if (d->attributes.count(405) != 0) {
            const auto text = elements<char>(*d, 405);
            if (std::sscanf(std::string(text.begin(), text.end()).c_str(), "{\"fake_engine\": %ld}", &d->engine) != 1) {
                return fail(1003, "made by another version");
            }
        } else {
            d->engine = static_cast<Descriptor*>(elements<void*>(*d, 401).at(0))->engine;
        }
        if (d->engine == 2) return fail(3003, "engine 2 does not take\n this type");
        if (d->engine == 3) return fail(4001, "the kernel does not compile");
    }
    d->finalized = true;
    return 0;
}

int cudnnBackendGetAttribute(void* raw, int name, int type, std::int64_t requested, std::int64_t* count, void* out) {
    auto* d = static_cast<Descriptor*>(raw);
    if (d->type == kGraph && name == 802) return answer<std::int64_t>({4}, requested, count, out);
    if (d->type == kHeuristic && name == 202) {
        const auto engines = proposals(elements<std::int32_t>(*d, 200).at(0));
        if (elements<std::int32_t>(*d, 203) == std::vector<std::int32_t>{1}) return fail(3000, "no engine for one multiprocessor");
        *count = static_cast<std::int64_t>(engines.size());
        for (std::int64_t i = 0; i < requested && i < *count; ++i) static_cast<Descriptor**>(out)[i]->engine = engines[static_cast<std::size_t>(i)];
        return 0;
    }
    if (d->type == kConfig && name == 300) {
        *count = 1;
        if (requested > 0) (*static_cast<Descriptor**>(out))->engine = d->engine;
        return 0;
    }
    if (d->type == kConfig && name == 302 && d->attributes.count(302) == 0) {
        *count = d->engine == 1 ? static_cast<std::int64_t>(kKnobs.size()) : 0;
        for (std::int64_t i = 0; i < requested && i < *count; ++i) {
            put<std::int32_t>(static_cast<Descriptor**>(out)[i], 600, 9, {kKnobs[static_cast<std::size_t>(i)].first});
            put<std::int64_t>(static_cast<Descriptor**>(out)[i], 601, 3, {kKnobs[static_cast<std::size_t>(i)].second});
        }
        return 0;
    }
    if (d->type == kConfig && name == 302) {
        const auto choices = elements<void*>(*d, 302);
        *count = static_cast<std::int64_t>(choices.size());
        for (std::int64_t i = 0; i < requested && i < *count; ++i) {
            static_cast<Descriptor**>(out)[i]->attributes = static_cast<Descriptor*>(choices[static_cast<std::size_t>(i)])->attributes;
        }
        return 0;
    }
    if (d->type == kEngine && name == 1301) return answer<std::int64_t>({d->engine}, requested, count, out);
    if (d->type == kEngine && name == 1303) return answer<std::int32_t>(d->engine == 1 ? std::vector<std::int32_t>{0, 99} : std::vector<std::int32_t>{}, requested, count, out);
    if (d->type == kEngine && name == 1305) return answer<std::int32_t>(d->engine == 0 ? std::vector<std::int32_t>{} : std::vector<std::int32_t>{0, 3}, requested, count, out);
    if (d->type == kEngine && name == 1302) {
        *count = d->engine == 1 ? static_cast<std::int64_t>(kKnobs.size()) : 0;
        for (std::int64_t i = 0; i < requested && i < *count; ++i) {
            auto* info = static_cast<Descriptor**>(out)[i];
            put<std::int32_t>(info, 1200, 9, {kKnobs[static_cast<std::size_t>(i)].first});
            put<std::int64_t>(info, 1201, 3, {9});
            put<std::int64_t>(info, 1202, 3, {1});
            put<std::int64_t>(info, 1203, 3, {2});
        }
        return 0;
    }
    if (d->type == kPlan && name == 402) return answer<std::int64_t>({1000 * d->engine}, requested, count, out);
    if (d->type == kPlan && name == 405) {
        const std::string text = "{\"fake_engine\": " + std::to_string(d->engine) + "}";
        return answer<char>(std::vector<char>(text.c_str(), text.c_str() + text.size() + 1), requested, count, out);
    }
    const auto found = d->attributes.find(name);
    if (found == d->attributes.end()) return fail(2000, "the attribute was not set");
    if (found->second.type != type) return fail(2010, "the attribute has another type");
    *count = found->second.count;
    if (requested > 0) std::memcpy(out, found->second.bytes.data(), width(type) * static_cast<std::size_t>(std::min(requested, *count)));
    return 0;
}

int cudnnBackendExecute(void* handle, void* plan, void* raw) {
    const auto* pack = static_cast<Descriptor*>(raw);
    const auto workspace = elements<std::int64_t>(*pack, 1003).at(0);
    if (workspace == 0xBAD0) return fail(5000, "the launch failed");
    std::ostringstream line;
    line << "{\"engine\": " << static_cast<Descriptor*>(plan)->engine << ", \"uids\": " << list(elements<std::int64_t>(*pack, 1000))
         << ", \"pointers\": " << list(elements<std::int64_t>(*pack, 1001)) << ", \"workspace\": " << workspace
         << ", \"stream\": " << reinterpret_cast<std::uintptr_t>(static_cast<Handle*>(handle)->stream)
         << ", \"override_uids\": " << list(elements<std::int64_t>(*pack, 1010)) << ", \"shapes\": " << lists(pack->shapes)
         << ", \"strides\": " << lists(pack->strides) << ", \"values\": [";
    // Addresses below 1 MiB are made up by the tests; what lies at the others are the values of scalars.
    bool first = true;
    for (std::int64_t pointer : elements<std::int64_t>(*pack, 1001)) {
        if (pointer >= 1 << 20) {
            float value;
            std::memcpy(&value, reinterpret_cast<void*>(pointer), sizeof(value));
            line << (first ? "" : ", ") << value;
            first = false;
        }
    }
    line << "]}\n";
    if (std::getenv("FAKE_CUDNN_QUIET") == nullptr) {
        std::lock_guard<std::mutex> lock(log_mutex);
        log_text += line.str();
    }
    return 0;
}

const char* fake_log() { return log_text.c_str(); }
std::int64_t fake_alive() { return __atomic_load_n(&alive, __ATOMIC_SEQ_CST); }

}  // extern "C"
