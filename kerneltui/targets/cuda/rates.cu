/* What a link between two GPUs gives: bandwidth by stores of CTAs and by bulk stores (TMA) into the memory of
 * a peer, and the way of a flag. The timing harness stands before this text. The peer's memory is reached by
 * plain addresses, never by multicast.
 */

namespace {

constexpr int kStoreThreads = 512, kStoreUnroll = 4;
constexpr uint32_t kBulkBlock = 16384;
constexpr int kBulkSlots = 8;
constexpr uint64_t kFirstWays = 64;               /* until both sides have surely begun */
constexpr long long kGiveUpClocks = 4000000000ll; /* some two seconds */

/* Copies by 16-byte loads and stores. */
__global__ void __launch_bounds__(kStoreThreads) push_stores(const uint4 *from, uint4 *to, uint64_t count) {
    const uint64_t step = uint64_t(gridDim.x) * kStoreThreads * kStoreUnroll;
    for (uint64_t base = uint64_t(blockIdx.x) * kStoreThreads * kStoreUnroll; base < count; base += step) {
        uint4 value[kStoreUnroll];
#pragma unroll
        for (int u = 0; u < kStoreUnroll; ++u) {
            const uint64_t i = base + uint64_t(u) * kStoreThreads + threadIdx.x;
            if (i < count) value[u] = from[i];
        }
#pragma unroll
        for (int u = 0; u < kStoreUnroll; ++u) {
            const uint64_t i = base + uint64_t(u) * kStoreThreads + threadIdx.x;
            if (i < count) to[i] = value[u];
        }
    }
}

/* Stores what stands in shared memory again and again, block by block, by one thread of a CTA: the stores of an
 * epilogue without the product. What is stored does not matter. */
__global__ void __launch_bounds__(32) push_bulk(char *to, uint64_t blocks) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) char held[];
    for (uint32_t i = threadIdx.x; i < kBulkSlots * kBulkBlock / 16; i += 32)
        reinterpret_cast<uint4 *>(held)[i] = make_uint4(i, blockIdx.x, i * 2654435761u, 1);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x == 0) {
        uint32_t slot = 0;
        for (uint64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
            const uint32_t source = uint32_t(__cvta_generic_to_shared(held + slot * kBulkBlock));
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + block * kBulkBlock),
                         "r"(source), "r"(kBulkBlock)
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kBulkSlots - 1) : "memory");
            slot = slot + 1 == kBulkSlots ? 0 : slot + 1;
        }
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
#else
    (void)to, (void)blocks;
#endif
}

/* One side of a flag that goes to and fro; the time of `ways` round trips, or 0 if the other did not come. */
__global__ void bounce(const uint64_t *mine, uint64_t *theirs, uint64_t first, uint64_t ways, bool begins,
                       volatile uint64_t *took) {
    const long long entered = clock64();
    uint64_t since = 0;
    for (uint64_t i = 0; i < kFirstWays + ways; ++i) {
        if (i == kFirstWays) since = timer();
        if (begins) tell(theirs, first + i);
        for (uint32_t spins = 0; look(mine) < first + i; ++spins)
            if (spins % 64 == 63 && clock64() - entered > kGiveUpClocks) {
                *took = 0;
                return;
            }
        if (!begins) tell(theirs, first + i);
    }
    *took = timer() - since;
}

struct Side {
    int device;
    uint64_t *word;
    uint64_t *took;
    cudaStream_t stream;
};

cudaError_t reach(int from, int to) {
    cudaError_t e = cudaSetDevice(from);
    if (e == cudaSuccess) e = cudaDeviceEnablePeerAccess(to, 0);
    if (e != cudaErrorPeerAccessAlreadyEnabled) return e;
    (void)cudaGetLastError();
    return cudaSuccess;
}

cudaError_t open_side(Side *side) {
    cudaError_t e = cudaSetDevice(side->device);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&side->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaMalloc(reinterpret_cast<void **>(&side->word), 128);
    if (e == cudaSuccess) e = cudaMalloc(reinterpret_cast<void **>(&side->took), 8);
    if (e == cudaSuccess) e = cudaMemset(side->word, 0, 128);
    cudaFuncAttributes attributes; /* loaded now: the other side would spin meanwhile */
    if (e == cudaSuccess) e = cudaFuncGetAttributes(&attributes, bounce);
    if (e == cudaSuccess) e = cudaDeviceSynchronize();
    return e;
}

void close_side(Side *side) {
    (void)cudaSetDevice(side->device);
    if (side->word) (void)cudaFree(side->word);
    if (side->took) (void)cudaFree(side->took);
    if (side->stream) (void)cudaStreamDestroy(side->stream);
}

cudaError_t play(Side *sides, uint64_t first, uint64_t ways, uint64_t *took) {
    cudaError_t e = cudaSuccess;
    for (int i = 1; i >= 0 && e == cudaSuccess; --i) { /* who answers is there first */
        e = cudaSetDevice(sides[i].device);
        if (e != cudaSuccess) break;
        bounce<<<1, 1, 0, sides[i].stream>>>(sides[i].word, sides[1 - i].word, first, ways, i == 0, sides[i].took);
        e = cudaGetLastError();
    }
    for (int i = 0; i < 2; ++i) {
        cudaError_t end = cudaSetDevice(sides[i].device);
        if (end == cudaSuccess) end = cudaStreamSynchronize(sides[i].stream);
        if (e == cudaSuccess) e = end;
    }
    if (e == cudaSuccess) e = cudaMemcpy(took, sides[1].took, 8, cudaMemcpyDefault);
    return e;
}

} // namespace

extern "C" {

/* Lets kernels of the current device store into the memory of a peer. */
int ht_reach_peer(int here, int there, ht_failure *failure, int32_t *code) {
    const cudaError_t e = reach(here, there);
    return e == cudaSuccess ? HT_DONE : cuda_failure(e, "cudaDeviceEnablePeerAccess", failure, code);
}

/* Enqueues stores of `bytes`, a multiple of 16, by so many CTAs. */
int ht_push_stores(const void *from, void *to, uint64_t bytes, uint32_t ctas, void *stream, ht_failure *failure,
                   int32_t *code) {
    push_stores<<<ctas, kStoreThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const uint4 *>(from), static_cast<uint4 *>(to), bytes / 16);
    const cudaError_t e = cudaGetLastError();
    return e == cudaSuccess ? HT_DONE : cuda_failure(e, "launch of push_stores", failure, code);
}

/* Enqueues bulk stores of `bytes`, a multiple of 16 KiB, by so many CTAs; from sm_90 on. */
int ht_push_bulk(void *to, uint64_t bytes, uint32_t ctas, void *stream, ht_failure *failure, int32_t *code) {
    constexpr int shared = kBulkSlots * int(kBulkBlock);
    cudaError_t e = cudaFuncSetAttribute(push_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (e != cudaSuccess) return cuda_failure(e, "cudaFuncSetAttribute of push_bulk", failure, code);
    push_bulk<<<ctas, 32, shared, static_cast<cudaStream_t>(stream)>>>(static_cast<char *>(to), bytes / kBulkBlock);
    e = cudaGetLastError();
    return e == cudaSuccess ? HT_DONE : cuda_failure(e, "launch of push_bulk", failure, code);
}

/* Nanoseconds that a flag takes one way: stored with release, polled with acquire at the scope of the system.
 * The first of the two devices is current afterwards. */
int ht_flag_way(int here, int there, uint64_t ways, double *nanoseconds, ht_failure *failure, int32_t *code) {
    Side sides[2] = {{here, nullptr, nullptr, nullptr}, {there, nullptr, nullptr, nullptr}};
    const char *what = "cudaDeviceEnablePeerAccess";
    cudaError_t e = reach(here, there);
    if (e == cudaSuccess) e = reach(there, here);
    if (e == cudaSuccess) what = "a place for flags";
    for (Side &side : sides)
        if (e == cudaSuccess) e = open_side(&side);
    if (e == cudaSuccess) what = "flags to and fro";
    uint64_t best = 0, first = 1;
    for (int turn = 0; turn < 5 && e == cudaSuccess; ++turn, first += kFirstWays + ways) {
        uint64_t took = 0;
        e = play(sides, first, ways, &took);
        if (e == cudaSuccess && took && (!best || took < best)) best = took;
    }
    close_side(&sides[1]);
    close_side(&sides[0]);
    if (e != cudaSuccess) return cuda_failure(e, what, failure, code);
    *nanoseconds = ways ? double(best) / double(2 * ways) : 0.0;
    return HT_DONE;
}

} /* extern "C" */
