/* What the first accesses to a peer cost after a pause: do links between GPUs sleep, and what wakes them?
 *
 *     nvcc -std=c++17 -O2 -gencode arch=compute_90a,code=sm_90a benchmarks/cuda_hosts/links.cu -o links && ./links
 *
 * Two GPUs of one host, one process. Every line follows 277 MB of stores to the peer and a pause. The answers as
 * measured are in docs/cuda-hosts.md; `nvidia-smi nvlink -i 0 -gLowPwrInfo` says what the driver is set to.
 */
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        const cudaError_t error_ = (call);                                                                   \
        if (error_) {                                                                                        \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, cudaGetErrorString(error_));                     \
            std::exit(1);                                                                                    \
        }                                                                                                    \
    } while (0)

namespace {

constexpr int kCtas = 132, kThreads = 256, kChunks = 64;
constexpr uint64_t kChunkBytes = kThreads * 8 * 16;
constexpr int kWords = 256;
constexpr uint64_t kWordStride = 65536; /* bytes */

__device__ uint64_t timer() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

/* One thread reads words, each when the one before has come. out[i]: ns until word i was there. */
__global__ void read_words(const char *peer, uint64_t *out) {
    const uint64_t begin = timer();
    for (int i = 0; i < kWords; ++i) {
        uint32_t word;
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(peer + i * kWordStride) : "memory");
        if (word) out[0] = 0; /* the memory holds zeros: waits, never writes */
        out[i] = timer() - begin;
    }
}

/* All CTAs store to the peer, or read from it. out[CTA * chunks + i]: ns until its chunk i was read, or its stores
 * were on their way. */
__global__ void stream(char *peer, bool stores, int chunks, uint64_t *out) {
    __shared__ uint64_t begin;
    if (threadIdx.x == 0) begin = timer();
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < chunks; ++i) {
        const uint64_t place = (uint64_t(blockIdx.x) * chunks + i) * kChunkBytes;
        float4 *at = reinterpret_cast<float4 *>(peer + place) + threadIdx.x;
        for (int j = 0; stores && j < 8; ++j) at[j * kThreads] = make_float4(0, 0, 0, 0);
        for (int j = 0; !stores && j < 8; ++j) sum += __ldcv(at + j * kThreads).x;
        __syncthreads();
        if (threadIdx.x == 0) out[uint64_t(blockIdx.x) * chunks + i] = timer() - begin;
    }
    if (sum != 0) out[0] = 0;
}

/* A flag goes to and fro. */
__global__ void bounce(volatile uint64_t *mine, volatile uint64_t *theirs, bool begins, uint64_t base,
                       uint64_t *out) {
    const uint64_t begin = timer();
    for (int i = 1; i <= kWords; ++i) {
        if (begins) {
            *theirs = base + i;
            __threadfence_system();
        }
        while (*mine < base + i) {
        }
        if (!begins) {
            *theirs = base + i;
            __threadfence_system();
        }
        out[i - 1] = timer() - begin;
    }
}

__global__ void spin(uint64_t ns) {
    const uint64_t begin = timer();
    while (timer() - begin < ns) {
    }
}

struct Gpu {
    char *memory;
    uint64_t *flag, *out; /* `out` is the host's */
    cudaStream_t stream, side;
};

class Probe {
  public:
    Probe() {
        const size_t bytes = size_t(512) << 20;
        for (int d = 0; d < 2; ++d) {
            CHECK(cudaSetDevice(d));
            CHECK(cudaDeviceEnablePeerAccess(1 - d, 0));
            CHECK(cudaMalloc(&gpu_[d].memory, bytes));
            CHECK(cudaMemset(gpu_[d].memory, 0, bytes));
            CHECK(cudaMalloc(&gpu_[d].flag, 4096));
            CHECK(cudaMemset(gpu_[d].flag, 0, 4096));
            CHECK(cudaMallocHost(&gpu_[d].out, size_t(8) << 20));
            CHECK(cudaStreamCreateWithFlags(&gpu_[d].stream, cudaStreamNonBlocking));
            CHECK(cudaStreamCreateWithFlags(&gpu_[d].side, cudaStreamNonBlocking));
        }
        CHECK(cudaSetDevice(0));
        CHECK(cudaEventCreate(&begin_));
        CHECK(cudaEventCreate(&end_));
    }

    void words(double pause_us) {
        rest(pause_us);
        read_words<<<1, 1, 0, gpu_[0].stream>>>(gpu_[1].memory, gpu_[0].out);
        wait();
        print("words read", pause_us, some_words());
    }

    void flags(double pause_us) {
        rest(pause_us);
        for (int d = 0; d < 2; ++d) {
            CHECK(cudaSetDevice(d));
            bounce<<<1, 1, 0, gpu_[d].stream>>>(gpu_[d].flag, gpu_[1 - d].flag, d == 0, base_, gpu_[d].out);
        }
        base_ += kWords;
        wait();
        print("a flag to and fro", pause_us, some_words());
    }

    void chunks(bool stores, int ctas, double pause_us) {
        rest(pause_us);
        stream<<<ctas, kThreads, 0, gpu_[0].stream>>>(gpu_[1].memory, stores, kChunks, gpu_[0].out);
        wait();
        char text[64];
        std::snprintf(text, sizeof text, "%s of %d CTAs", stores ? "stores" : "reads", ctas);
        print(text, pause_us, slowest(ctas));
    }

    void copy(size_t bytes, double pause_us) {
        rest(pause_us);
        spin<<<1, 1, 0, gpu_[0].stream>>>(50000);
        CHECK(cudaEventRecord(begin_, gpu_[0].stream));
        CHECK(cudaMemcpyAsync(gpu_[1].memory, gpu_[0].memory, bytes, cudaMemcpyDeviceToDevice, gpu_[0].stream));
        CHECK(cudaEventRecord(end_, gpu_[0].stream));
        wait();
        float ms = 0;
        CHECK(cudaEventElapsedTime(&ms, begin_, end_));
        char text[64];
        std::snprintf(text, sizeof text, "copy engine, %zu KiB", bytes >> 10);
        print(text, pause_us, {ms * 1e3});
    }

    /* Something small on a side stream, and `gap_us` later the stores of all CTAs. */
    void woken(int how, double gap_us) {
        static const char *const names[] = {"nothing", "words read", "reads, 1 chunk", "stores, 1 chunk",
                                            "copy engine, 64 KiB"};
        rest(80000);
        const Gpu &own = gpu_[0];
        char *peer = gpu_[1].memory;
        if (how == 1) read_words<<<1, 1, 0, own.side>>>(peer, gpu_[1].out);
        if (how == 2 || how == 3) stream<<<kCtas, kThreads, 0, own.side>>>(peer, how == 3, 1, gpu_[1].out);
        if (how == 4) CHECK(cudaMemcpyAsync(peer, own.memory, 65536, cudaMemcpyDeviceToDevice, own.side));
        spin<<<1, 1, 0, own.stream>>>(uint64_t(gap_us * 1e3));
        stream<<<kCtas, kThreads, 0, own.stream>>>(peer, true, kChunks, own.out);
        wait();
        char text[64];
        std::snprintf(text, sizeof text, "%s, then %.0f us", names[how], gap_us);
        print(text, 80000, slowest(kCtas));
    }

  private:
    void rest(double us) {
        stream<<<kCtas, kThreads, 0, gpu_[0].stream>>>(gpu_[1].memory, true, kChunks, gpu_[0].out);
        wait();
        if (us > 0) usleep(useconds_t(us));
    }

    void wait() {
        for (int d = 0; d < 2; ++d) {
            CHECK(cudaSetDevice(d));
            CHECK(cudaGetLastError());
            CHECK(cudaDeviceSynchronize());
        }
        CHECK(cudaSetDevice(0));
    }

    std::vector<double> some_words() const {
        std::vector<double> us;
        for (int i : {0, 1, 2, 4, 8, 16, 32, 64, 128, 255}) us.push_back(double(gpu_[0].out[i]) / 1e3);
        return us;
    }

    std::vector<double> slowest(int ctas) const {
        std::vector<double> us;
        for (int i : {0, 1, 3, 7, 15, 31, 63}) {
            uint64_t most = 0;
            for (int c = 0; c < ctas; ++c) most = std::max(most, gpu_[0].out[uint64_t(c) * kChunks + i]);
            us.push_back(double(most) / 1e3);
        }
        return us;
    }

    static void print(const char *what, double pause_us, const std::vector<double> &us) {
        std::printf("%-32s pause %6.0f us:", what, pause_us);
        for (double value : us) std::printf(" %7.1f", value);
        std::printf("\n");
    }

    Gpu gpu_[2] = {};
    uint64_t base_ = 0;
    cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

} // namespace

int main() {
    Probe probe;
    const double pauses[] = {0, 200, 1000, 10000, 80000};
    std::printf("us until word or flag 1 2 3 5 9 17 33 65 129 256\n");
    for (double pause : pauses) probe.words(pause);
    for (double pause : pauses) probe.flags(pause);
    std::printf("us until chunk 1 2 4 8 16 32 64 of 32 KiB of the slowest CTA\n");
    for (bool stores : {true, false})
        for (double pause : pauses)
            for (int ctas : {kCtas, 8}) probe.chunks(stores, ctas, pause);
    for (size_t bytes : {size_t(65536), size_t(4) << 20, size_t(64) << 20})
        for (double pause : {0., 1000., 80000.}) probe.copy(bytes, pause);
    std::printf("the same after something small\n");
    for (int how = 0; how < 5; ++how)
        for (double gap : {20., 60., 150.}) probe.woken(how, gap);
}
