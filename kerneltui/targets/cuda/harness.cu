/* The timing harness of GPUs; what all harnesses share stands before this text, and capture_order.cu.
 *
 * A sample on one rank, all on the caller's stream:
 *
 *   gate kernel    wakes the links to the peers, waits for its host's word, tells every peer, waits for every
 *                  peer, notes the time
 *   the calls      of the kernel
 *   stamp kernels  note the time: after the last call, or after each
 *
 * The gate holds the stream until everything is enqueued, so the time between gate and stamp is device
 * time. In some samples the engine has inputs written while the gate holds: a kernel that works before it
 * on streams of its own has worked on old inputs, and is found out. A first call, whose enqueueing may load
 * code or connect peers, is not held back: the gate opens first, and the host enqueues then. So it is for a
 * kernel whose run waits for the device, once the gate has lost its patience with it (`kOpenFirst`). Short calls
 * are enqueued as a graph of all three (`capture_sample`). Times
 * are those of the device (%globaltimer, nanoseconds) and are written to memory of the host, which spins on
 * it; CLOCK_MONOTONIC around it is the second opinion.
 */
#include <cuda_runtime.h>
#include <library_types.h>

/* Where a tensor of this rank lies. */
struct ht_place {
    unsigned char *bytes;
    uint64_t count;
};

namespace {

constexpr uint32_t kMostRanks = 64;
constexpr uint32_t kMostStamps = 1024;
constexpr uint64_t kLookNs = 500000;         /* between two looks whether the device has failed */
constexpr uint64_t kSideDelayNs = 1000000;   /* by which work on side streams is held back on trial */
constexpr uint64_t kHeadStartNs = 20000;      /* of a kernel that is launched early, before its inputs are right */
constexpr uint32_t kFlipCtas = 64;           /* SMs are left over: one that takes all shared memory starts early, too */
constexpr uint32_t kMostFlipped = 32;
constexpr size_t kWorkspaceBytes = 32u << 20; /* what cuBLAS recommends for Hopper */
constexpr int kHandles = 8;
constexpr uint64_t kAwakeNs = 10000000;      /* links that are not used sleep after 50 ms (H200) */
constexpr uint64_t kLinkBytes = 65536;       /* of adjacent memory lie behind all links of a peer */
constexpr uint32_t kGateThreads = 64;
constexpr uint64_t kOpenFirst = 2;           /* the gate opens, then the host enqueues: nothing can run before */

/* In memory of the host that the device writes. */
struct Board {
    volatile uint64_t go;         /* host: the number of the gate that may open */
    volatile uint64_t awake;      /* device: the number of the gate that has woken the links */
    volatile uint64_t enqueued;   /* host: the number of the gate behind which everything is enqueued */
    volatile uint64_t gate_ns;    /* device: when all ranks had come */
    volatile uint64_t start_ns;   /* device: after the rank's own delay */
    volatile uint64_t unheld;     /* device: the gate opened without the host's word */
    volatile uint64_t late;       /* device: rank + 1 of a peer that did not come */
    volatile uint64_t done;       /* device: everything of the sample has run, with the gate's number */
    volatile uint64_t early, settled; /* device: digests of the outputs */
    volatile uint64_t stamps[kMostStamps];
};

struct Gates {
    uint64_t *line[kMostRanks]; /* where each rank's lines lie: 16 words for every writer */
};

__device__ uint64_t timer() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

__device__ void tell(uint64_t *word, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

__device__ uint64_t look(const uint64_t *word) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}

/* Reads from the peers' memory over all links, everything at once. A link that sleeps holds up what comes first
 * by 0.1 ms in each direction: neither the gate's words nor the calls are to pay for the harness's pauses. */
__device__ void wake_links(const Gates &gates, Board *board, uint32_t rank, uint32_t ranks) {
    constexpr uint32_t kReads = kLinkBytes / 128 / kGateThreads;
    uint32_t sum = 0;
    for (uint32_t peer = 0; peer < ranks; ++peer) {
        if (peer == rank) continue;
        const char *place = reinterpret_cast<const char *>(gates.line[peer]) + threadIdx.x * 128;
        uint32_t words[kReads];
#pragma unroll
        for (uint32_t i = 0; i < kReads; ++i)
            asm volatile("ld.volatile.global.u32 %0, [%1];"
                         : "=r"(words[i])
                         : "l"(place + i * kGateThreads * 128)
                         : "memory");
#pragma unroll
        for (uint32_t i = 0; i < kReads; ++i) sum += words[i];
    }
    /* A use of what was read: the assembler drops loads, such as ld.relaxed.sys, whose results nobody uses. */
    if (sum == 0x9E3779B9u) board->awake = 0;
    __syncthreads();
}

/* Waits for the host's word, but not beyond `until`; false if it has not come. Without the word: run waits for
 * the device itself, on this rank or, when all is enqueued here, on a peer whose gate has lost its patience.
 * They would wait for ever. */
struct Patience {
    uint64_t begin, patience_ns, give_up_ns;
    uint64_t passed; /* when a peer was seen that has passed its word on */

    __device__ bool wait(const Gates &gates, Board *board, uint32_t rank, uint32_t ranks, uint64_t number,
                         uint64_t until) {
        while (board->go < number) {
            const uint64_t now = timer(), waited = now - begin;
            for (uint32_t peer = 0; peer < ranks && !passed; ++peer)
                if (peer != rank && look(gates.line[rank] + 16 * peer) >= number) passed = now;
            if ((board->enqueued < number && waited > patience_ns) || (passed && now - passed > patience_ns) ||
                waited > give_up_ns) {
                board->unheld = 1;
                return true;
            }
            if (now > until) return false;
        }
        return true;
    }
};

__global__ void open_gate(Gates gates, Board *board, uint32_t rank, uint32_t ranks, uint64_t number,
                          uint64_t delay_ns, uint64_t patience_ns, uint64_t give_up_ns) {
    const uint64_t begin = timer();
    Patience patience{begin, patience_ns, give_up_ns, 0};
    for (bool stay = true; stay;) {
        wake_links(gates, board, rank, ranks);
        if (threadIdx.x == 0) {
            board->awake = number;
            stay = !patience.wait(gates, board, rank, ranks, number, timer() + kAwakeNs);
        }
        stay = __syncthreads_or(threadIdx.x == 0 && stay);
    }
    for (uint32_t peer = threadIdx.x; peer < ranks; peer += blockDim.x) {
        tell(gates.line[peer] + 16 * rank, number);
        while (look(gates.line[rank] + 16 * peer) < number) {
            if (timer() - begin > give_up_ns) {
                board->late = peer + 1;
                break;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        const uint64_t passed = timer();
        board->gate_ns = passed;
        while (timer() - passed < delay_ns) {
        }
        board->start_ns = timer();
        __threadfence_system();
    }
}

__global__ void stamp(volatile uint64_t *place) {
    *place = timer();
    __threadfence_system();
}

__global__ void mark(volatile uint64_t *place, uint64_t value) {
    __threadfence_system();
    *place = value;
    __threadfence_system();
}

__global__ void hold_back(uint64_t nanoseconds) {
    const uint64_t begin = timer();
    while (timer() - begin < nanoseconds) {
    }
}

/* Adds up words, each times an odd number of its place: a changed word changes the sum. */
__global__ void add_digest(const unsigned char *bytes, uint64_t count, unsigned long long *sum) {
    const uint64_t words = count / 8, step = uint64_t(gridDim.x) * blockDim.x;
    const uint64_t *from = reinterpret_cast<const uint64_t *>(bytes);
    uint64_t mine = 0;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += step)
        mine += __ldcv(from + i) * (2 * i + 0x9E3779B97F4A7C15ull);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        for (uint64_t i = words * 8; i < count; ++i)
            mine += uint64_t(__ldcv(bytes + i)) * (2 * i + 0xD1B54A32D192ED03ull);
    atomicAdd(sum, static_cast<unsigned long long>(mine));
}

struct Places {
    ht_place at[kMostFlipped];
    uint32_t count;
};

/* Turns bytes into others, and back the second time. A kernel behind it that may be launched early is, and has
 * `head_start_ns` to read what it should have waited for. */
__global__ void flip(Places places, uint64_t head_start_ns) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    const uint64_t begin = timer();
    while (timer() - begin < head_start_ns) {
    }
#endif
    const uint64_t first = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x, step = uint64_t(gridDim.x) * blockDim.x;
    for (uint32_t p = 0; p < places.count; ++p) {
        unsigned char *bytes = places.at[p].bytes;
        const uint64_t words = places.at[p].count / 8;
        uint64_t *to = reinterpret_cast<uint64_t *>(bytes);
        for (uint64_t i = first; i < words; i += step) to[i] ^= 0x5555555555555555ull;
        if (first == 0)
            for (uint64_t i = words * 8; i < places.at[p].count; ++i) bytes[i] ^= 0x55;
    }
}

__global__ void give_digest(unsigned long long *sum, volatile uint64_t *place) {
    *place = *sum;
    *sum = 0;
    __threadfence_system();
}

using Create = int (*)(void **);
using SetStream = int (*)(void *, void *);
using SetWorkspace = int (*)(void *, void *, size_t);
using SetMathMode = int (*)(void *, int);
using GemmEx = int (*)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
                       int, int, const void *, void *, int, int, int, int);

using Gather = int (*)(const void *, void *, size_t, int, void *, void *);
using Broadcast = int (*)(const void *, void *, size_t, int, int, void *, void *);
using Reduce = int (*)(const void *, void *, size_t, int, int, void *, void *);
using Plain = int (*)();

constexpr int kNoTranspose = 0, kCompute32F = 68, kDefaultAlgorithm = -1; /* cublas_api.h */
/* Parts of a sum may not be added in the short type of the output: it costs most of the digits. */
constexpr int kNoReducedPrecisionReduction = 16;
constexpr int kNcclUint8 = 1, kNcclInt32 = 2, kNcclSum = 0;               /* nccl.h */

} // namespace

extern "C" {

/* What a rank has of its device. */
struct ht_device {
    cudaStream_t stream; /* the caller's */
    cudaStream_t own;    /* the harness's */
    Board *board;
    unsigned long long *sum;
    uint32_t side_count;
    cudaStream_t side[16];
};

struct ht_handle {
    void *stream;
    void *handle;
};

struct ht_vendor {
    Create create;
    SetStream set_stream;
    SetWorkspace set_workspace;
    SetMathMode set_math_mode;
    GemmEx gemm;
    int32_t dtype;
    int32_t handle_count;
    ht_handle handles[kHandles];
};

struct ht_nccl {
    Gather all_gather;
    Broadcast broadcast;
    Reduce all_reduce;
    Plain group_start;
    Plain group_end;
    void *communicator; /* NULL: the kernel did not ask for host collectives */
    void *word;         /* 4 bytes of device memory, for the barrier */
    ht_failure *failure;
    uint32_t rank;
    uint32_t ranks;
};

struct ht_sample {
    /* in */
    int (*run)(void *, uint32_t, uint64_t, void *);
    void *state;
    void *control;
    uint32_t rank;
    uint32_t ranks;
    uint32_t sets;
    uint32_t first_set;
    uint64_t calls;
    uint64_t epoch;
    uint64_t gate;     /* grows with every sample */
    uint64_t delay_ns; /* between gate and start */
    uint64_t deadline_ns;
    /* out */
    uint64_t *ends_ns; /* room for `calls` */
    uint64_t start_ns;
    uint64_t ticks; /* the interval by the clock of the host, 0 if it cannot be told */
    uint64_t cpu_ns;
    int64_t minor_faults;
    int64_t involuntary_switches;
    int32_t code;         /* what a failed run returned, or the error of the device */
    uint32_t late_rank;   /* who did not come to the gate */
    uint64_t failed_call; /* which call failed */
    /* further in */
    ht_device *device;
    uint64_t *const *gates;    /* where each rank's lines of the gate lie */
    const ht_place *outputs; /* `output_count` for every buffer set */
    uint32_t output_count;
    uint32_t verifying; /* 1: not held back, the end of each call, and whether outputs are settled */
    uint64_t patience_ns;
    uint64_t hold; /* 1: the engine's word is waited for once everything is enqueued; 2: kOpenFirst */
    uint64_t graph; /* 1: everything is enqueued as one graph */
    const ht_place *inputs; /* `input_count` for every buffer set */
    uint32_t input_count;
    uint32_t masked; /* 1: inputs are right only from the end of the call before; see mask_inputs */
    /* further out */
    uint64_t gate_ns;
    uint64_t go_ns; /* by the host: the gate cannot have opened before */
    uint64_t enqueue_ns; /* by the host: from the first launch to the word for the gate */
    uint64_t end_count;
    uint32_t unheld; /* 1: the gate opened before everything was enqueued */
};

static int cuda_failure(cudaError_t error, const char *where, ht_failure *failure, int32_t *code) {
    char text[1024];
    const char *said = failure->set ? "; the kernel says: " : "";
    std::snprintf(text, sizeof text, "%s: %s (%s)%s%.600s", where, cudaGetErrorString(error),
                  cudaGetErrorName(error), said, failure->set ? failure->text : "");
    failure->set = 0; /* what the device says comes before what the kernel made of it */
    ht_fail(failure, text);
    *code = static_cast<int32_t>(error);
    return HT_CUDA;
}

/* Makes the device current, with the streams and the board of the rank. */
int ht_open_device(int index, ht_device *device, ht_failure *failure, int32_t *code) {
    cudaError_t e = cudaSetDevice(index);
    if (e == cudaSuccess) e = cudaFree(nullptr);
    /* An SM that has little shared memory apart must be idle before a kernel that asks for more is placed on it. */
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(flip, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&device->stream, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&device->own, cudaStreamNonBlocking);
    if (e == cudaSuccess)
        e = cudaHostAlloc(reinterpret_cast<void **>(&device->board), sizeof(Board),
                          cudaHostAllocMapped | cudaHostAllocPortable);
    if (e == cudaSuccess) e = cudaMalloc(reinterpret_cast<void **>(&device->sum), 8);
    if (e == cudaSuccess) e = cudaMemset(device->sum, 0, 8);
    if (e != cudaSuccess) return cuda_failure(e, "the device cannot be opened", failure, code);
    std::memset(const_cast<Board *>(device->board), 0, sizeof(Board));
    /* All code of the harness is loaded now: loading it behind a gate that spins might never end. */
    hold_back<<<1, 1, 0, device->own>>>(0);
    stamp<<<1, 1, 0, device->own>>>(device->board->stamps);
    mark<<<1, 1, 0, device->own>>>(&device->board->done, 0);
    add_digest<<<1, 32, 0, device->own>>>(nullptr, 0, device->sum);
    give_digest<<<1, 1, 0, device->own>>>(device->sum, &device->board->early);
    flip<<<1, 32, 0, device->own>>>(Places{}, 0);
    cudaFuncAttributes attributes;
    e = cudaFuncGetAttributes(&attributes, open_gate);
    if (e == cudaSuccess) e = cudaDeviceSynchronize();
    if (e != cudaSuccess) return cuda_failure(e, "the device does not run", failure, code);
    return HT_DONE;
}

int ht_side_streams(ht_device *device, uint32_t count, ht_failure *failure, int32_t *code) {
    for (; device->side_count < count && device->side_count < 16; ++device->side_count) {
        const cudaError_t e = cudaStreamCreateWithFlags(&device->side[device->side_count], cudaStreamNonBlocking);
        if (e != cudaSuccess) return cuda_failure(e, "no further stream", failure, code);
    }
    return HT_DONE;
}

/* Free memory of the current device. */
uint64_t ht_free_bytes() {
    size_t available = 0, total = 0;
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? available : 0;
}

void *ht_allocate(uint64_t bytes) {
    void *place = nullptr;
    return cudaMalloc(&place, bytes) == cudaSuccess ? place : nullptr;
}

int ht_release(void *place) { return static_cast<int>(cudaFree(place)); }

/* Waits for the device; its error as an HT_ result. */
int ht_synchronize(ht_failure *failure, int32_t *code) {
    const cudaError_t e = cudaDeviceSynchronize();
    return e == cudaSuccess ? HT_DONE : cuda_failure(e, "the device", failure, code);
}

/* A handle of its own for each stream: calls on two streams must not share a workspace. */
static void *vendor_handle(ht_vendor *vendor, void *stream) {
    for (int i = 0; i < vendor->handle_count; ++i)
        if (vendor->handles[i].stream == stream) return vendor->handles[i].handle;
    if (vendor->handle_count == kHandles) return nullptr;
    void *handle = nullptr;
    void *workspace = ht_allocate(kWorkspaceBytes);
    if (!workspace || vendor->create(&handle) || vendor->set_stream(handle, stream) ||
        vendor->set_workspace(handle, workspace, kWorkspaceBytes) ||
        vendor->set_math_mode(handle, kNoReducedPrecisionReduction))
        return nullptr;
    vendor->handles[vendor->handle_count++] = {stream, handle};
    return handle;
}

/* The kt_vendor.gemm of GPUs. BLAS is column major, so the operands are swapped. 2: too large; 3: there is
 * no vendor function for this dtype; 4: no handle; 100 + a status of cuBLAS. */
int ht_gemm(void *self, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, const void *b,
            int64_t ldb, void *c, int64_t ldc, void *stream) {
    ht_vendor *vendor = static_cast<ht_vendor *>(self);
    constexpr int64_t largest = 0x7fffffff;
    for (int64_t size : {m, n, k, lda, ldb, ldc})
        if (size < 0 || size > largest) return 2;
    if (m == 0 || n == 0) return 0;
    int type;
    if (vendor->dtype == KT_FLOAT32) type = CUDA_R_32F;
    else if (vendor->dtype == KT_FLOAT16) type = CUDA_R_16F;
    else if (vendor->dtype == KT_BFLOAT16) type = CUDA_R_16BF;
    else return 3;
    void *handle = vendor_handle(vendor, stream);
    if (!handle) return 4;
    const float one = 1, zero = 0;
    const int status = vendor->gemm(
        handle, kNoTranspose, kNoTranspose, static_cast<int>(n), static_cast<int>(m), static_cast<int>(k), &one,
        b, type, static_cast<int>(ldb), a, type, static_cast<int>(lda), &zero, c, type, static_cast<int>(ldc),
        kCompute32F, kDefaultAlgorithm);
    return status ? 100 + status : 0;
}

/* The kt_host of GPUs. Equal parts go through ncclAllGather, others through a broadcast of each. */
int ht_all_gather(void *self, const void *send, void *recv, const uint64_t *counts, void *stream) {
    ht_nccl *nccl = static_cast<ht_nccl *>(self);
    if (!nccl->communicator) {
        ht_fail(nccl->failure, "all_gather: set host_collectives in kerneltui_requirements");
        return 1;
    }
    bool equal = true;
    for (uint32_t r = 1; r < nccl->ranks; ++r) equal = equal && counts[r] == counts[0];
    if (equal) return nccl->all_gather(send, recv, counts[0], kNcclUint8, nccl->communicator, stream);
    int code = nccl->group_start();
    char *place = static_cast<char *>(recv);
    for (uint32_t r = 0; r < nccl->ranks && !code; place += counts[r++])
        if (counts[r])
            code = nccl->broadcast(r == nccl->rank ? send : place, place, counts[r], kNcclUint8,
                                   static_cast<int>(r), nccl->communicator, stream);
    const int end = nccl->group_end();
    return code ? code : end;
}

int ht_barrier(void *self, void *stream) {
    ht_nccl *nccl = static_cast<ht_nccl *>(self);
    if (!nccl->communicator) {
        ht_fail(nccl->failure, "barrier: set host_collectives in kerneltui_requirements");
        return 1;
    }
    return nccl->all_reduce(nccl->word, nccl->word, 1, kNcclInt32, kNcclSum, nccl->communicator, stream);
}

static void enqueue_digest(const ht_sample *s, cudaStream_t stream, volatile uint64_t *place) {
    const uint64_t used = s->calls < s->sets ? s->calls : s->sets;
    for (uint64_t i = 0; i < used; ++i) {
        const uint64_t set = (s->first_set + i) % s->sets;
        for (uint32_t o = 0; o < s->output_count; ++o) {
            const ht_place &output = s->outputs[set * s->output_count + o];
            if (output.count) add_digest<<<264, 512, 0, stream>>>(output.bytes, output.count, s->device->sum);
        }
    }
    give_digest<<<1, 1, 0, stream>>>(s->device->sum, place);
}

/* Spins until `place` holds at least `value`; looks now and then whether the device has failed. */
static int wait_for(ht_sample *s, volatile uint64_t *place, uint64_t value, ht_failure *failure) {
    Slot &slot = static_cast<Slot *>(s->control)[s->rank];
    uint64_t next = now_ns() + kLookNs;
    for (int spins = 0; *place < value; ++spins) {
        relax();
        if (spins < 64) continue;
        spins = 0;
        const uint64_t now = now_ns();
        if (now < next) continue;
        next = now + kLookNs;
        const cudaError_t e = cudaStreamQuery(s->device->stream);
        if (e != cudaSuccess && e != cudaErrorNotReady) {
            (void)cudaGetLastError();
            return cuda_failure(e, "the kernel failed on the device", failure, &s->code);
        }
        for (uint64_t i = 0; i < s->end_count && s->device->board->stamps[i]; ++i)
            if (s->verifying) slot.finished.store(s->epoch + i + 1, std::memory_order_relaxed);
        if (now > s->deadline_ns) return HT_HUNG;
    }
    return HT_DONE;
}

/* Masks the inputs of a buffer set, or takes the mask off. Behind the gate those of all calls are masked; a call's are
 * right again only when the caller's stream is done with the call before. Who works before its turn, on a stream of its
 * own or because nothing waits in a programmatic launch, works on wrong ones. All inputs of a call by one launch:
 * behind a second one, what the first has put right could be read early unseen. */
static void mask_inputs(const ht_sample *s, uint64_t set, uint64_t head_start_ns) {
    Places places = {};
    for (uint32_t i = 0; s->masked && i < s->input_count && places.count < kMostFlipped; ++i)
        if (s->inputs[set * s->input_count + i].count)
            places.at[places.count++] = s->inputs[set * s->input_count + i];
    if (places.count) flip<<<kFlipCtas, 1024, 0, s->device->stream>>>(places, head_start_ns);
}

/* Calls run for all calls of the sample, and has the times noted behind it. `order` is of a capture. */
static int enqueue_calls(ht_sample *s, ht_failure *failure, CaptureOrder *order = nullptr) {
    Slot &slot = static_cast<Slot *>(s->control)[s->rank];
    cudaStream_t stream = s->device->stream;
    uint32_t set = s->first_set;
    for (uint64_t i = 0; i < s->calls; ++i) mask_inputs(s, (s->first_set + i) % s->sets, 0);
    for (uint64_t i = 0; i < s->calls; ++i) {
        mask_inputs(s, set, kHeadStartNs);
        slot.begun.store(s->epoch + i + 1, std::memory_order_relaxed);
        const int result =
            guarded([&] { return s->run(s->state, set, s->epoch + i, stream); }, &s->code, failure);
        const cudaError_t e = cudaGetLastError();
        if (order && result == HT_DONE && e == cudaSuccess) {
            const cudaError_t marked = order->mark();
            if (marked != cudaSuccess)
                return cuda_failure(marked, "the capture of the calls cannot be looked at", failure, &s->code);
        }
        if (result != HT_DONE || e != cudaSuccess) {
            s->failed_call = i;
            if (e != cudaSuccess) return cuda_failure(e, "kerneltui_run left an error", failure, &s->code);
            return result;
        }
        if (s->verifying) stamp<<<1, 1, 0, stream>>>(&s->device->board->stamps[i]);
        if (++set == s->sets) set = 0;
    }
    if (!s->verifying) stamp<<<1, 1, 0, stream>>>(&s->device->board->stamps[0]);
    return HT_DONE;
}

static int prepare(ht_sample *s, ht_failure *failure) {
    const cudaError_t e = cudaDeviceSynchronize(); /* nothing of an earlier call is left */
    if (e != cudaSuccess) return cuda_failure(e, "the device was broken before", failure, &s->code);
    Board *board = s->device->board;
    s->end_count = s->verifying ? s->calls : 1;
    if (s->end_count > kMostStamps || s->ranks > kMostRanks || (s->masked && s->calls > s->sets)) {
        ht_fail(failure, "more calls or ranks than the harness has room for");
        s->code = 1;
        return HT_RETURNED;
    }
    board->gate_ns = board->start_ns = board->unheld = board->late = board->done = 0;
    for (uint64_t i = 0; i < s->end_count; ++i) board->stamps[i] = 0;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return HT_DONE;
}

/* The ranks meet on the host several times in a sample. */
static bool meet_again(ht_sample *s, uint64_t step) {
    return meet(s->control, s->rank, s->ranks, 8 * s->gate + step, s->deadline_ns, &s->late_rank);
}

/* The inputs of this sample are written now. False at the deadline. */
static bool wait_for_inputs(ht_sample *s) {
    Slot &slot = static_cast<Slot *>(s->control)[s->rank];
    slot.held.store(s->gate, std::memory_order_release);
    while (slot.go_on.load(std::memory_order_acquire) < s->gate) {
        sched_yield();
        if (now_ns() > s->deadline_ns) return false;
    }
    return true;
}

static void launch_gate(ht_sample *s, bool first) {
    Gates gates = {};
    for (uint32_t r = 0; r < s->ranks; ++r) gates.line[r] = s->gates[r];
    const uint64_t now = now_ns(), left = s->deadline_ns > now ? s->deadline_ns - now : 0;
    open_gate<<<1, kGateThreads, 0, s->device->stream>>>(gates, s->device->board, s->rank, s->ranks, s->gate, s->delay_ns,
                                               first ? left : s->patience_ns, left);
}

/* Makes one graph of gate, calls and stamp, anew for each sample, so that each call runs once, as it does without.
 * It is looked at before it runs: calls side by side would seem short (capture_order.cu).
 * A launch out of a graph takes the same time in every process and on every stream. One that a host enqueues takes
 * up to 0.2 us more or less by its stream (H200, 64x64x64: 2.7 to 3.0 us, steady as long as the process lives). */
static int capture_sample(ht_sample *s, cudaGraphExec_t *made, ht_failure *failure) {
    cudaStream_t stream = s->device->stream;
    cudaGraph_t graph = nullptr;
    int result = HT_DONE;
    char wrong[256] = "";
    CaptureOrder order(stream);
    cudaError_t e = cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    if (e == cudaSuccess) {
        launch_gate(s, false);
        e = order.mark();
        if (e == cudaSuccess) result = enqueue_calls(s, failure, &order);
        if (e == cudaSuccess && result == HT_DONE) e = order.mark();
        const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
        if (e == cudaSuccess && !order.left()) e = ended;
    }
    if (result == HT_DONE && order.left())
        std::snprintf(wrong, sizeof wrong, "run ends the capture of its stream, or begins one of its own");
    else if (result == HT_DONE && e == cudaSuccess)
        e = order.check(graph, wrong, sizeof wrong);
    if (*wrong) {
        failure->set = 0; /* what the kernel says of itself comes after this */
        ht_fail(failure, wrong);
        result = HT_OUT_OF_ORDER;
    }
    if (result == HT_DONE && e == cudaSuccess) e = cudaGraphInstantiate(made, graph, 0);
    if (result == HT_DONE && e == cudaSuccess) e = cudaGraphUpload(*made, stream);
    /* Of the whole device: what was launched outside of the capture must not wait for the calls in it. */
    if (result == HT_DONE && e == cudaSuccess) e = cudaDeviceSynchronize();
    if (graph) cudaGraphDestroy(graph);
    if (e == cudaSuccess) return result;
    (void)cudaGetLastError();
    return cuda_failure(e, "the calls cannot be captured into a graph", failure, &s->code);
}

/* The calls behind their gate. */
static int enqueue_sample(ht_sample *s, cudaGraphExec_t *graph, ht_failure *failure) {
    if (!s->graph) {
        launch_gate(s, false);
        return enqueue_calls(s, failure);
    }
    const int result = capture_sample(s, graph, failure);
    if (result != HT_DONE) return result;
    const cudaError_t e = cudaGraphLaunch(*graph, s->device->stream);
    return e == cudaSuccess ? HT_DONE : cuda_failure(e, "the graph of the calls", failure, &s->code);
}

static int run_held(ht_sample *s, cudaGraphExec_t *graph, ht_failure *failure) {
    Board *board = s->device->board;
    int result = prepare(s, failure);
    if (result != HT_DONE) return result;
    if (!meet_again(s, 1)) return HT_LATE;
    rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    const uint64_t cpu = process_cpu_ns();
    const bool first = s->verifying || s->hold == kOpenFirst;
    const uint64_t launched = now_ns();
    uint64_t begin;
    if (first) {
        launch_gate(s, true);
        for (uint32_t i = 0; s->verifying && i < s->device->side_count; ++i)
            hold_back<<<1, 1, 0, s->device->side[i]>>>(kSideDelayNs);
        result = wait_for(s, &board->awake, s->gate, failure);
        s->go_ns = now_ns();
        board->go = s->gate;
        if (result == HT_DONE) result = wait_for(s, &board->start_ns, 1, failure);
        begin = now_ns();
        if (result == HT_DONE) result = enqueue_calls(s, failure);
        if (result == HT_DONE && s->verifying) {
            enqueue_digest(s, s->device->stream, &board->early);
            mark<<<1, 1, 0, s->device->stream>>>(&board->done, s->gate);
        }
    } else {
        result = enqueue_sample(s, graph, failure);
        board->enqueued = s->gate;
        if (result == HT_DONE && !meet_again(s, 2)) result = HT_LATE;
        if (result == HT_DONE) result = wait_for(s, &board->awake, s->gate, failure);
        if (result == HT_DONE && s->hold == 1 && !wait_for_inputs(s)) result = HT_HUNG;
        s->go_ns = begin = now_ns();
        board->go = s->gate; /* also after a failure: the gate must not spin on */
    }
    if (result == HT_DONE) result = wait_for(s, &board->stamps[s->end_count - 1], 1, failure);
    uint64_t end = now_ns();
    if (result == HT_DONE && s->verifying) result = wait_for(s, &board->done, s->gate, failure);
    if (result != HT_DONE) return result;
    const cudaError_t e = cudaDeviceSynchronize();
    if (!s->verifying) end = now_ns(); /* work that is left on other streams shows here */
    if (e != cudaSuccess) return cuda_failure(e, "the kernel failed on the device", failure, &s->code);
    s->cpu_ns = process_cpu_ns() - cpu;
    getrusage(RUSAGE_SELF, &after);
    s->minor_faults = after.ru_minflt - before.ru_minflt;
    s->involuntary_switches = after.ru_nivcsw - before.ru_nivcsw;
    s->gate_ns = board->gate_ns;
    s->start_ns = board->start_ns;
    for (uint64_t i = 0; i < s->end_count; ++i) s->ends_ns[i] = board->stamps[i];
    s->unheld = board->unheld ? 1 : 0;
    s->ticks = s->unheld ? 0 : end - begin;
    s->enqueue_ns = s->unheld || s->verifying ? 0 : s->go_ns - launched; /* or waking, if it opened first */
    if (s->unheld) s->go_ns = launched;
    if (s->hold == kOpenFirst) s->unheld = 1;
    static_cast<Slot *>(s->control)[s->rank].finished.store(s->epoch + s->calls, std::memory_order_relaxed);
    if (board->late) {
        s->late_rank = static_cast<uint32_t>(board->late - 1);
        return HT_LATE;
    }
    return HT_DONE;
}

static int run_sample(ht_sample *s, ht_failure *failure) {
    cudaGraphExec_t graph = nullptr;
    const int result = run_held(s, &graph, failure);
    if (!graph || result != HT_DONE) return result; /* after a failure it may run on */
    const uint64_t begin = now_ns();
    cudaGraphExecDestroy(graph);
    if (s->enqueue_ns) s->enqueue_ns += now_ns() - begin;
    return result;
}

int ht_take_sample(ht_sample *s, ht_failure *failure) {
    int result;
    try {
        result = run_sample(s, failure);
    } catch (const std::exception &error) { /* not the kernel's: those are caught where it is called */
        char text[256];
        std::snprintf(text, sizeof text, "the graph of the calls cannot be looked at: %s", error.what());
        failure->set = 0;
        ht_fail(failure, text);
        return HT_OUT_OF_ORDER;
    }
    if (result != HT_DONE || !s->verifying) return result;
    /* When all ranks are done, nobody stores any more: the outputs must be what they were when everything
     * on the stream had run. */
    if (!meet_again(s, 3)) return HT_LATE;
    enqueue_digest(s, s->device->own, &s->device->board->settled);
    const cudaError_t e = cudaStreamSynchronize(s->device->own);
    if (e != cudaSuccess) return cuda_failure(e, "the kernel failed on the device", failure, &s->code);
    return s->device->board->settled == s->device->board->early ? HT_DONE : HT_UNSETTLED;
}

} /* extern "C" */
