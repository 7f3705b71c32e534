/* A kernel of the contract whose launches go to a made-up runtime, and that runtime: for launch_trace.cpp.
 *
 * Compiled once as the kernel (with the names changed, as nvcc is told to) and once as the rest of the program,
 * and linked with the same --wrap. A launch named "fault" breaks the device, "spin" keeps its stream busy
 * until "release" was launched on another one, "refused" cannot be launched.
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>
#include <string>

#include <kerneltui/kernel.h>

#if CUDART_VERSION >= 13000
#define LAUNCH __cudaLaunchKernel
using Handle = cudaKernel_t;
extern "C" cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t);
#else
#define LAUNCH cudaLaunchKernel
using Handle = const void *;
#endif

#ifdef KERNEL

namespace {
struct State {
    const kt_context *ctx;
};
cudaStream_t stream_of(int number) { return reinterpret_cast<cudaStream_t>(static_cast<intptr_t>(number)); }
int launch(const char *name, cudaStream_t stream) { return LAUNCH(Handle(name), 1, 1, nullptr, 0, stream); }
}

/* The scenario is the name of the first dimension: what run launches, a word each, with its stream. */
extern "C" int kerneltui_setup(const kt_context *ctx, void **state) {
    *state = new State{ctx};
    return launch("prepare", stream_of(1));
}

extern "C" int kerneltui_run(void *state, uint32_t, uint64_t, void *) {
    const kt_context *ctx = static_cast<State *>(state)->ctx;
    const std::string all = ctx->dimensions[0].name;
    for (size_t at = 0; at < all.size();) {
        const size_t end = all.find(' ', at);
        const std::string word = all.substr(at, end - at);
        const cudaStream_t stream = stream_of(word[0] - '0');
        const std::string what = word.substr(2);
        int code = 0;
        if (what == "gemm") code = ctx->vendor->gemm(ctx->vendor->self, 1, 1, 1, 0, 1, 0, 1, 0, 1, stream);
        else if (what == "gather") code = ctx->host->all_gather(ctx->host->self, 0, 0, 0, stream);
        else if (what == "copy") code = cudaMemcpyAsync(nullptr, nullptr, 0, cudaMemcpyDefault, stream);
        else if (what == "destroy") cudaStreamDestroy(stream);
        else launch(what.c_str(), stream);
        if (code) return code;
        at = end == std::string::npos ? all.size() : end + 1;
    }
    return 0;
}

#else

namespace {
bool broken = false, waiting[8] = {}, gone[8] = {}, capturing = false;
int place(cudaStream_t stream) { return static_cast<int>(reinterpret_cast<intptr_t>(stream)); }

cudaError_t make(const char *name, cudaStream_t stream) {
    const std::string what = name;
    std::printf("%s\n", name);
    if (what == "refused") return cudaErrorInvalidValue;
    if (what == "spin") waiting[place(stream)] = true;
    if (what == "release") std::memset(waiting, 0, sizeof waiting);
    if (what == "capture") capturing = true;
    if (what.find("fault") != std::string::npos) broken = true;
    return cudaSuccess;
}
}

extern "C" {
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    if (capturing) std::printf("ASKED DURING A CAPTURE\n");
    if (gone[place(stream)]) std::printf("ASKED A STREAM THAT IS GONE\n");
    if (broken) return cudaErrorIllegalAddress;
    return waiting[place(stream)] ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) {
    *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    std::printf("destroy\n");
    gone[place(stream)] = true;
    return cudaSuccess;
}
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "invalid argument";
}
cudaError_t cudaFuncGetName(const char **name, const void *function) {
    *name = static_cast<const char *>(function);
    return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3, dim3, void **, size_t, cudaStream_t s) {
    return make(reinterpret_cast<const char *>(k), s);
}
#endif
cudaError_t cudaLaunchKernel(const void *k, dim3, dim3, void **, size_t, cudaStream_t s) {
    return make(static_cast<const char *>(k), s);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *k, void **) {
    return make(static_cast<const char *>(k), c->stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void *k, dim3, dim3, void **, size_t, cudaStream_t s) {
    return make(static_cast<const char *>(k), s);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t s) { return make("graph", s); }
cudaError_t cudaMemcpyAsync(void *, const void *, size_t, cudaMemcpyKind, cudaStream_t s) {
    return make("copy fault", s);
}
cudaError_t cudaMemsetAsync(void *, int, size_t, cudaStream_t s) { return make("set", s); }
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **) {
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *, CUfunction, void **, void **) { return CUDA_SUCCESS; }
CUresult cuFuncGetName(const char **, CUfunction) { return CUDA_ERROR_INVALID_VALUE; }
}

static int gemm(void *, int64_t, int64_t, int64_t, const void *, int64_t, const void *, int64_t, void *, int64_t,
                void *stream) {
    return make("gemm", static_cast<cudaStream_t>(stream));
}
static int gather(void *, const void *, void *, const uint64_t *, void *stream) {
    return make("gather fault", static_cast<cudaStream_t>(stream));
}
static int barrier(void *, void *) { return 0; }

int main(int, char **arguments) {
    const kt_vendor vendor = {gemm, nullptr};
    const kt_host host = {gather, barrier, nullptr};
    const kt_named_value scenario = {arguments[1], 0};
    kt_context ctx = {};
    ctx.rank = 1;
    ctx.dimension_count = 1;
    ctx.dimensions = &scenario;
    ctx.vendor = &vendor;
    ctx.host = &host;
    void *state = nullptr;
    if (kerneltui_setup(&ctx, &state)) return 3;
    return kerneltui_run(state, 0, 1, nullptr);
}

#endif
