/* kernel_driver.cu - the host functions of kernel_driver.py that must not run in Python while a call is
 * timed: vendor GEMM (cuBLAS), all-gather (NCCL), a start gate over the ranks, poison, and the batch loop.
 *
 * cuBLAS and NCCL are those that torch has loaded: their functions come in as addresses. */
#include <cuda_runtime.h>
#include <stdint.h>

namespace {

constexpr int cuda_r_16bf = 14, compute_32f = 68, default_algorithm = -1, op_n = 0, nccl_int8 = 0;

struct Cublas {
    void *handle;
    int (*set_stream)(void *, void *);
    int (*gemm_ex)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int,
                   int, const void *, void *, int, int, int, int);
};

struct Nccl {
    void *comm;
    int rank, ranks;
    int (*all_gather)(const void *, void *, size_t, int, void *, void *);
    int (*broadcast)(const void *, void *, size_t, int, int, void *, void *);
    int (*group_start)();
    int (*group_end)();
};

__device__ uint64_t load_acquire(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/* Opens when both hosts have set their word, that is, when both have enqueued what comes behind. */
__global__ void gate_kernel(const uint64_t *host_word, uint64_t *peer_word, const uint64_t *own_word,
                            uint64_t token) {
    while (load_acquire(host_word) < token) __nanosleep(100);
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(peer_word), "l"(token) : "memory");
    while (load_acquire(own_word) < token) __nanosleep(20);
}

__global__ void sleep_kernel(uint64_t nanoseconds) {
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        __nanosleep(1000);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
}

}  // namespace

extern "C" {

int kd_gemm(void *self, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, const void *b,
            int64_t ldb, void *c, int64_t ldc, void *stream) {
    const Cublas *cublas = static_cast<const Cublas *>(self);
    const float one = 1.0f, zero = 0.0f;
    const int error = cublas->set_stream(cublas->handle, stream);
    if (error) return error;
    return cublas->gemm_ex(cublas->handle, op_n, op_n, int(n), int(m), int(k), &one, b, cuda_r_16bf,
                           int(ldb), a, cuda_r_16bf, int(lda), &zero, c, cuda_r_16bf, int(ldc), compute_32f,
                           default_algorithm);
}

int kd_all_gather(void *self, const void *send, void *recv, const uint64_t *counts, void *stream) {
    const Nccl *nccl = static_cast<const Nccl *>(self);
    bool equal = true;
    for (int q = 1; q < nccl->ranks; ++q) equal = equal && counts[q] == counts[0];
    if (equal) return nccl->all_gather(send, recv, counts[0], nccl_int8, nccl->comm, stream);
    int error = nccl->group_start();
    char *target = static_cast<char *>(recv);
    for (int q = 0; q < nccl->ranks && !error; ++q) {
        if (counts[q])
            error = nccl->broadcast(q == nccl->rank ? send : target, target, counts[q], nccl_int8, q,
                                    nccl->comm, stream);
        target += counts[q];
    }
    const int end = nccl->group_end();
    return error ? error : end;
}

int kd_gate(const uint64_t *host_word, uint64_t *peer_word, const uint64_t *own_word, uint64_t token,
            void *stream) {
    gate_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(host_word, peer_word, own_word, token);
    return int(cudaGetLastError());
}

int kd_sleep(uint64_t nanoseconds, void *stream) {
    sleep_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(nanoseconds);
    return int(cudaGetLastError());
}

/* `calls` calls from `epoch` on, over the sets in turn. */
int kd_batch(int (*run)(void *, uint32_t, uint64_t, void *), void *state, uint32_t sets, uint64_t epoch,
             uint32_t calls, void *stream) {
    for (uint32_t i = 0; i < calls; ++i) {
        const int code = run(state, uint32_t((epoch + i) % sets), epoch + i, stream);
        if (code) return code;
    }
    return 0;
}
}
