/* Kernels and NCCL calls of the host probe (`probe.py`), as a shared library with a C interface. */
#include <cstdint>
#include <cstring>
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

namespace {

__device__ uint64_t global_ns() {
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

__device__ void raise(uint64_t *flag, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ uint64_t look(const uint64_t *flag) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}

/* Waits for ever, or until `limit_ns` have gone by where that is not 0. */
__global__ void spin(ncclWindow_t window, uint64_t value, uint64_t limit_ns) {
    const uint64_t *flag = static_cast<const uint64_t *>(ncclGetLocalPointer(window, 0));
    const uint64_t begin = global_ns();
    while (look(flag) < value)
        if (limit_ns && global_ns() - begin > limit_ns) return;
}

/* Rank 0 asks, rank 1 answers with its clock; words: 0 flag, 1 the clock of the answer. */
__global__ void ping_pong(ncclDevComm comm, ncclWindow_t window, uint64_t first, int count, uint64_t *out) {
    uint64_t *own = static_cast<uint64_t *>(ncclGetLocalPointer(window, 0));
    uint64_t *peer = static_cast<uint64_t *>(ncclGetLsaPointer(window, 0, 1 - comm.lsaRank));
    for (int i = 0; i < count; ++i) {
        const uint64_t turn = first + i;
        if (comm.lsaRank == 0) {
            const uint64_t asked = global_ns();
            raise(peer, turn);
            while (look(own) < turn) {
            }
            const uint64_t back = global_ns();
            out[3 * i] = asked;
            out[3 * i + 1] = own[1];
            out[3 * i + 2] = back;
        } else {
            while (look(own) < turn) {
            }
            peer[1] = global_ns();
            raise(peer, turn);
        }
    }
}

/* Arrives at every rank, waits for every rank, and says when it went on. Words 8 to 8 + ranks. */
__global__ void gate(ncclDevComm comm, ncclWindow_t window, uint64_t turn, uint64_t *out) {
    const int rank = comm.lsaRank;
    for (int p = 0; p < comm.lsaSize; ++p)
        raise(static_cast<uint64_t *>(ncclGetLsaPointer(window, 0, p)) + 8 + rank, turn);
    const uint64_t *own = static_cast<const uint64_t *>(ncclGetLocalPointer(window, 0));
    for (int p = 0; p < comm.lsaSize; ++p)
        while (look(own + 8 + p) < turn) {
        }
    *out = global_ns();
}

__global__ void clock_steps(uint64_t *out, int count) {
    for (int i = 0; i < count; ++i) out[i] = global_ns();
}

/* Stores of 16 bytes to the peer, all CTAs. */
__global__ void push(uint4 *to, const uint4 *from, size_t count) {
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
        to[i] = from[i];
}

ncclDevComm device_comm;

} // namespace

extern "C" {

int probe_version() {
    int loaded = 0;
    ncclGetVersion(&loaded);
    return loaded == NCCL_VERSION_CODE ? loaded : -loaded;
}

int probe_unique_id(void *out) { return ncclGetUniqueId(static_cast<ncclUniqueId *>(out)); }

int probe_comm(int rank, int ranks, const void *id, void **out) {
    ncclUniqueId made;
    std::memcpy(&made, id, sizeof made);
    return ncclCommInitRank(reinterpret_cast<ncclComm_t *>(out), ranks, made, rank);
}

int probe_window(void *comm, size_t bytes, void **buffer, void **window) {
    const ncclResult_t made = ncclMemAlloc(buffer, bytes);
    if (made != ncclSuccess) return made;
    cudaMemset(*buffer, 0, bytes);
    cudaDeviceSynchronize();
    return ncclCommWindowRegister(static_cast<ncclComm_t>(comm), *buffer, bytes,
                                  reinterpret_cast<ncclWindow_t *>(window), NCCL_WIN_COLL_SYMMETRIC);
}

/* Registers memory that was made elsewhere. */
int probe_register(void *comm, void *buffer, size_t bytes, void **window) {
    return ncclCommWindowRegister(static_cast<ncclComm_t>(comm), buffer, bytes,
                                  reinterpret_cast<ncclWindow_t *>(window), NCCL_WIN_COLL_SYMMETRIC);
}

int probe_device_comm(void *comm) {
    ncclDevCommRequirements wanted = {};
    wanted.lsaBarrierCount = 16;
    const ncclResult_t made = ncclDevCommCreate(static_cast<ncclComm_t>(comm), &wanted, &device_comm);
    cudaGetLastError(); /* ncclDevCommCreate leaves a stale one behind */
    return made;
}

int probe_spin(void *window, uint64_t value, uint64_t limit_ns) {
    spin<<<1, 1>>>(static_cast<ncclWindow_t>(window), value, limit_ns);
    return cudaGetLastError();
}

int probe_ping_pong(void *window, uint64_t first, int count, uint64_t *out) {
    ping_pong<<<1, 1>>>(device_comm, static_cast<ncclWindow_t>(window), first, count, out);
    return cudaDeviceSynchronize();
}

int probe_gate(void *window, uint64_t turn, uint64_t *out) {
    gate<<<1, 1>>>(device_comm, static_cast<ncclWindow_t>(window), turn, out);
    return cudaDeviceSynchronize();
}

int probe_clock(uint64_t *out, int count) {
    clock_steps<<<1, 1>>>(out, count);
    return cudaDeviceSynchronize();
}

int probe_gather(void *comm, const void *send, void *receive, size_t bytes) {
    return ncclAllGather(send, receive, bytes, ncclChar, static_cast<ncclComm_t>(comm), nullptr);
}

int probe_push(void *to, const void *from, size_t bytes, int blocks) {
    push<<<blocks, 512>>>(static_cast<uint4 *>(to), static_cast<const uint4 *>(from), bytes / 16);
    return cudaGetLastError();
}

} /* extern "C" */
