/* Which launch of a kernel failed. Linked into a second build of it, which is made and run after a fault.
 *
 * The linker's --wrap sends every launch of the kernel's own code here. It is made, and waited for, before the
 * next one: so an error belongs to the launch that was made last. Vendor functions and host collectives of the
 * context are launches by their own names. A launch that waits for a later one of the same rank does not end
 * that way: after a while it is left open, and what comes is made all the same.
 *
 * What was found goes to standard error, a line each, which outlives the rank. A kernel can write there too:
 * the lines are a hint to whoever repairs it, and decide about nothing.
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <cxxabi.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

/* The kernel is compiled with these names changed, so that its functions are called from here. */
#undef kerneltui_setup
#undef kerneltui_run
#include <kerneltui/kernel.h>

#ifndef KT_TRACE_WAIT_MS
#define KT_TRACE_WAIT_MS 2000
#endif

extern "C" int kerneltui_traced_setup(const kt_context *ctx, void **state);
extern "C" int kerneltui_traced_run(void *state, uint32_t set, uint64_t epoch, void *stream);

namespace {

constexpr uint64_t kWaitNs = KT_TRACE_WAIT_MS * 1000000ull;
constexpr size_t kMostOpen = 8; /* after so many launches without an end nothing is waited for any more */

struct Launch {
    std::string name; /* "launch 3 of run: epilogue_kernel" */
    cudaStream_t stream;
};

struct Trace {
    std::mutex guard;
    uint32_t rank = 0;
    const char *step = "setup";
    uint32_t ordinal = 0;
    bool told = false; /* an error stays, and every later call reports it again */
    std::string last;
    std::vector<Launch> open;
    std::vector<cudaStream_t> streams;
};

/* The context as the kernel sees it, with what stands between it and the harness. */
struct Seen {
    kt_context context;
    kt_vendor vendor;
    kt_host host;
    const kt_vendor *real_vendor;
    const kt_host *real_host;
};

Trace &trace() {
    static Trace *made = new Trace; /* never destroyed: a kernel may launch at its very end */
    return *made;
}

uint64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return uint64_t(t.tv_sec) * 1000000000ull + uint64_t(t.tv_nsec);
}

/* One line, written at once. */
void say(const char *format, ...) {
    char text[1024];
    int length = std::snprintf(text, sizeof text, "[launch] rank %u: ", trace().rank);
    va_list arguments;
    va_start(arguments, format);
    length += std::vsnprintf(text + length, sizeof text - length, format, arguments);
    va_end(arguments);
    if (length > int(sizeof text) - 2) length = int(sizeof text) - 2;
    text[length] = '\n';
    if (write(2, text, size_t(length) + 1) < 0) return; /* nobody is there to be told */
}

std::string plain_name(const char *symbol) {
    int status = 0;
    char *readable = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
    std::string name = status == 0 && readable ? readable : symbol;
    std::free(readable);
    for (const std::string part : {"(anonymous namespace)::", "void "})
        for (size_t at; (at = name.find(part)) != std::string::npos;) name.erase(at, part.size());
    return name.substr(0, name.find('('));
}

std::string name_of(const void *function) {
    const char *symbol = nullptr;
    if (cudaFuncGetName(&symbol, function) == cudaSuccess && symbol) return plain_name(symbol);
    (void)cudaGetLastError();
    return "a kernel without a name";
}

bool is_open(cudaStream_t stream) {
    for (const Launch &one : trace().open)
        if (one.stream == stream) return true;
    return false;
}

/* A stream that is being captured runs nothing, and a question would spoil the capture. */
bool is_captured(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

/* Waits for a stream for a while: done, not ready, or its error. */
cudaError_t wait_for(cudaStream_t stream) {
    const uint64_t end = now_ns() + kWaitNs;
    cudaError_t found;
    while ((found = cudaStreamQuery(stream)) == cudaErrorNotReady && now_ns() < end) {
        const timespec pause = {0, 20000};
        nanosleep(&pause, nullptr);
    }
    /* The kernel looks at the last error itself; that something is under way is none. */
    if (cudaPeekAtLastError() == cudaErrorNotReady) (void)cudaGetLastError();
    return found;
}

/* Tells of the first error, with all launches that it may belong to. */
void failed(const std::string &where, cudaError_t error) {
    Trace &t = trace();
    if (t.told) return;
    t.told = true;
    if (t.open.empty()) {
        say("%s: %s", where.c_str(), cudaGetErrorString(error));
        return;
    }
    std::string names;
    for (const Launch &one : t.open) names += one.name + ", ";
    say("%sor %s: %s (they run at the same time and cannot be told apart)", names.c_str(), where.c_str(),
        cudaGetErrorString(error));
}

/* A stream that is gone cannot be asked any more: its launches end unseen. */
void forget(cudaStream_t stream) {
    std::lock_guard<std::mutex> lock(trace().guard);
    Trace &t = trace();
    t.streams.erase(std::remove(t.streams.begin(), t.streams.end(), stream), t.streams.end());
    const auto gone = [stream](const Launch &one) { return one.stream == stream; };
    t.open.erase(std::remove_if(t.open.begin(), t.open.end(), gone), t.open.end());
}

bool gives_up(cudaStream_t stream) {
    Trace &t = trace();
    return t.told || t.open.size() >= kMostOpen || is_open(stream) || is_captured(stream);
}

/* Before a launch: what is not wrapped, such as a copy through the driver, may have failed on the stream. */
void before(cudaStream_t stream) {
    std::lock_guard<std::mutex> lock(trace().guard);
    Trace &t = trace();
    bool known = false;
    for (cudaStream_t one : t.streams) known = known || one == stream;
    if (!known) t.streams.push_back(stream);
    if (gives_up(stream)) return;
    const cudaError_t found = wait_for(stream);
    const std::string where =
        t.last.empty() ? std::string("before the first launch of ") + t.step : "after " + t.last;
    if (found == cudaErrorNotReady) {
        t.open.push_back({"something " + where, stream});
        say("something %s: has not ended after %d ms", where.c_str(), KT_TRACE_WAIT_MS);
    } else if (found != cudaSuccess) {
        failed(where, found);
    }
}

void after(const std::string &name, cudaStream_t stream, const char *refused) {
    std::lock_guard<std::mutex> lock(trace().guard);
    Trace &t = trace();
    const std::string where = "launch " + std::to_string(++t.ordinal) + " of " + t.step + ": " + name;
    t.last = where;
    if (refused) {
        if (!t.told) say("%s: refused: %s", where.c_str(), refused);
        return;
    }
    if (t.told || is_captured(stream)) return;
    if (gives_up(stream)) {
        t.open.push_back({where, stream});
        return;
    }
    const cudaError_t found = wait_for(stream);
    if (found == cudaErrorNotReady) {
        t.open.push_back({where, stream});
        say("%s: has not ended after %d ms", where.c_str(), KT_TRACE_WAIT_MS);
    } else if (found != cudaSuccess) {
        failed(where, found);
    }
}

/* At the end of a step: what was left open has ended, or has an error, or never ends. */
void finish() {
    std::lock_guard<std::mutex> lock(trace().guard);
    Trace &t = trace();
    bool all = true;
    for (cudaStream_t stream : t.streams) {
        if (t.told || is_captured(stream)) continue;
        const cudaError_t found = wait_for(stream);
        if (found == cudaErrorNotReady) all = false;
        else if (found != cudaSuccess) failed("what came after " + t.last, found);
    }
    if (t.told || t.open.empty()) return;
    if (!all) return; /* has been said */
    say("%s: ended when later launches had been made: they depend on each other", t.open[0].name.c_str());
    t.open.clear();
}

void begin(const char *step) {
    std::lock_guard<std::mutex> lock(trace().guard);
    trace().step = step;
    trace().ordinal = 0;
    trace().last.clear();
}

const char *refusal(cudaError_t error) { return error == cudaSuccess ? nullptr : cudaGetErrorString(error); }

/* Makes a launch between two waits. */
template <typename Make>
cudaError_t launch(const std::string &name, cudaStream_t stream, Make make) {
    before(stream);
    const cudaError_t made = make();
    after(name, stream, refusal(made));
    return made;
}

template <typename Make>
CUresult launch_by_driver(CUfunction function, CUstream stream, Make make) {
    before(stream);
    const CUresult made = make();
    const std::string refused = "error " + std::to_string(int(made)) + " of the driver";
    const char *symbol = nullptr;
    const bool named = cuFuncGetName(&symbol, function) == CUDA_SUCCESS && symbol;
    after(named ? plain_name(symbol) : "a kernel without a name", stream,
          made == CUDA_SUCCESS ? nullptr : refused.c_str());
    return made;
}

template <typename Make>
int call(const char *name, void *stream, Make make) {
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    before(on);
    const int code = make();
    const std::string refused = "it returned " + std::to_string(code);
    after(name, on, code ? refused.c_str() : nullptr);
    return code;
}

int traced_gemm(void *self, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, const void *b,
                int64_t ldb, void *c, int64_t ldc, void *stream) {
    const kt_vendor *real = static_cast<Seen *>(self)->real_vendor;
    return call("vendor gemm", stream,
                [&] { return real->gemm(real->self, m, n, k, a, lda, b, ldb, c, ldc, stream); });
}

int traced_all_gather(void *self, const void *send, void *recv, const uint64_t *counts, void *stream) {
    const kt_host *real = static_cast<Seen *>(self)->real_host;
    return call("host all_gather", stream,
                [&] { return real->all_gather(real->self, send, recv, counts, stream); });
}

int traced_barrier(void *self, void *stream) {
    const kt_host *real = static_cast<Seen *>(self)->real_host;
    return call("host barrier", stream, [&] { return real->barrier(real->self, stream); });
}

} // namespace

extern "C" {

int kerneltui_setup(const kt_context *ctx, void **state) {
    Seen *seen = new Seen{}; /* kernels keep the context; a rank of this kind does not live long */
    seen->context = *ctx;
    seen->real_vendor = ctx->vendor;
    seen->real_host = ctx->host;
    seen->vendor = {traced_gemm, seen};
    seen->host = {traced_all_gather, traced_barrier, seen};
    if (ctx->vendor) seen->context.vendor = &seen->vendor;
    if (ctx->host) seen->context.host = &seen->host;
    trace().rank = ctx->rank;
    begin("setup");
    const int code = kerneltui_traced_setup(&seen->context, state);
    finish();
    return code;
}

int kerneltui_run(void *state, uint32_t set, uint64_t epoch, void *stream) {
    begin("run");
    const int code = kerneltui_traced_run(state, set, epoch, stream);
    finish();
    return code;
}

#if CUDART_VERSION >= 13000
/* What the stubs of nvcc 13 call. */
cudaError_t __real___cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                                      size_t shared, cudaStream_t stream) {
    return launch(name_of(kernel), stream, [&] {
        return __real___cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
    });
}
#endif

cudaError_t __real_cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t __wrap_cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                    size_t shared, cudaStream_t stream) {
    return launch(name_of(function), stream, [&] {
        return __real_cudaLaunchKernel(function, grid, block, arguments, shared, stream);
    });
}

cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *, void **);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                       void **arguments) {
    return launch(name_of(function), config->stream,
                  [&] { return __real_cudaLaunchKernelExC(config, function, arguments); });
}

cudaError_t __real_cudaLaunchCooperativeKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
cudaError_t __wrap_cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block,
                                               void **arguments, size_t shared, cudaStream_t stream) {
    return launch(name_of(function), stream, [&] {
        return __real_cudaLaunchCooperativeKernel(function, grid, block, arguments, shared, stream);
    });
}

cudaError_t __real_cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    return launch("a graph", stream, [&] { return __real_cudaGraphLaunch(graph, stream); });
}

cudaError_t __real_cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t __wrap_cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
    return launch("cudaMemcpyAsync", stream,
                  [&] { return __real_cudaMemcpyAsync(to, from, bytes, kind, stream); });
}

cudaError_t __real_cudaMemsetAsync(void *, int, size_t, cudaStream_t);
cudaError_t __wrap_cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    return launch("cudaMemsetAsync", stream, [&] { return __real_cudaMemsetAsync(to, value, bytes, stream); });
}

/* What was launched on it has its say before it goes. */
cudaError_t __real_cudaStreamDestroy(cudaStream_t);
cudaError_t __wrap_cudaStreamDestroy(cudaStream_t stream) {
    before(stream);
    forget(stream);
    return __real_cudaStreamDestroy(stream);
}

CUresult __real_cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               CUstream, void **, void **);
CUresult __wrap_cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                               unsigned by, unsigned bz, unsigned shared, CUstream stream, void **arguments,
                               void **extra) {
    return launch_by_driver(function, stream, [&] {
        return __real_cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
    });
}

CUresult __real_cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **);
CUresult __wrap_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                 void **extra) {
    return launch_by_driver(function, config->hStream,
                            [&] { return __real_cuLaunchKernelEx(config, function, arguments, extra); });
}

} /* extern "C" */
