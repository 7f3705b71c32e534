/* kernel.h - the kernel contract of kerneltui, version 1.
 *
 * A kernel is one C++ file that defines the four functions at the end of this header with C linkage.
 * The harness owns the processes, the buffers, the inputs, the clocks and the verdict; the kernel owns
 * what happens between `kerneltui_run` being called and its return.
 *
 * One process per rank. Rank r owns rows floor(r*M/P) to floor((r+1)*M/P) of a row-sharded tensor.
 *
 *   requirements   before anything exists: what the kernel wants the harness to make
 *   setup          once per shape, untimed: descriptors, packed copies of declared-packed inputs, tables
 *   run            timed: does (cpu) or enqueues (cuda) one whole call on one buffer set
 *   teardown       once per shape, untimed
 *
 * Rules that the judge enforces:
 *  - When run returns on a rank (cpu), that rank's output tensors are complete and stay so.
 *  - Calls rotate over `sets` buffer sets. Between calls input values change in place, so nothing that
 *    depends on them may be kept from one call to the next. A rank may be one call ahead of its peers.
 *  - `epoch` grows by one with every call and is the same on all ranks. Flags in the signal area compare
 *    with the epoch and nobody ever resets them.
 *  - Outputs are poisoned between calls, the signal area never is.
 *  - A non-zero return is a failure of the candidate. Give the reason to `ctx->fail`.
 */
#ifndef KERNELTUI_KERNEL_H
#define KERNELTUI_KERNEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KERNELTUI_ABI_VERSION 1

typedef enum kt_dtype {
    KT_FLOAT32 = 0,
    KT_FLOAT64 = 1,
    KT_FLOAT16 = 2,
    KT_BFLOAT16 = 3,
    KT_INT32 = 4,
    KT_INT64 = 5
} kt_dtype;

/* The same numbers for #if, which sees no enumerators. The toolchain defines KT_ELEMENT as the dtype of the
 * workload on its target (-DKT_ELEMENT=KT_ELEMENT_FLOAT16), so that a kernel for several types is built for
 * one of them. Where nobody does, a kernel takes the type that it was written for. */
#define KT_ELEMENT_UNKNOWN (-1)
#define KT_ELEMENT_FLOAT32 0
#define KT_ELEMENT_FLOAT64 1
#define KT_ELEMENT_FLOAT16 2
#define KT_ELEMENT_BFLOAT16 3
#define KT_ELEMENT_INT32 4
#define KT_ELEMENT_INT64 5
#ifndef KT_ELEMENT
#define KT_ELEMENT KT_ELEMENT_UNKNOWN
#endif

typedef enum kt_role { KT_INPUT = 0, KT_OUTPUT = 1, KT_INOUT = 2, KT_SCALE = 3 } kt_role;

/* A named integer: a dimension of the workload or the value of a run-time tunable. */
typedef struct kt_named_value {
    const char *name;
    int64_t value;
} kt_named_value;

/* What the kernel asks of the harness. The harness zeroes it before the call. */
typedef struct kt_requirements {
    uint32_t abi_version;      /* set to KERNELTUI_ABI_VERSION */
    uint32_t signal_words;     /* 64-bit words in the signal area of each rank, zeroed once */
    uint64_t scratch_bytes;    /* private scratch of each rank, 4096-byte aligned */
    uint64_t window_bytes;     /* further symmetric memory of each rank, beside the symmetric tensors */
    uint32_t side_streams;     /* cuda: streams beside the caller's */
    uint32_t barriers;         /* cuda: device barriers (LSA sessions) */
    uint32_t cluster_size;     /* cuda: largest thread-block cluster, 0 = none */
    uint32_t graph_safe;       /* cuda: 1 if run may be captured into a graph, as short calls are */
    uint32_t host_collectives; /* 1 if run calls ctx->host */
    uint32_t nccl_windows;     /* cuda: 1 for NCCL windows of symmetric tensors and a device communicator */
    uint32_t gin_signals;      /* cuda: signals of NCCL's network calls (GIN), where the machine has them */
    uint32_t reserved[5];
} kt_requirements;

/* One tensor of one buffer set, as this rank sees it. `local` is the rank's own shard (or the whole, if
 * not sharded). For a symmetric tensor `peers[q]` is the same tensor in the memory of rank q, mapped
 * here for loads and stores; `peers[rank] == local`. For a private tensor `peers` is NULL. */
typedef struct kt_tensor {
    const char *name;
    kt_dtype dtype;
    kt_role role;
    uint32_t dims;
    int64_t shape[4];  /* local shape, row major, contiguous */
    int64_t offset[4]; /* where the shard begins in the global tensor */
    uint64_t bytes;
    void *local;
    void *const *peers;
    void *window; /* cuda: ncclWindow_t if `nccl_windows` was asked for; see kt_window_offset */
} kt_tensor;

typedef struct kt_buffer_set {
    uint32_t tensor_count;
    const kt_tensor *tensors;
} kt_buffer_set;

/* Vendor functions, the same for baselines and kernels. Each returns 0 or an error code. */
typedef struct kt_vendor {
    /* C[m,n] = A[m,k] * B[k,n], row major, leading dimensions in elements, dtype of the workload,
     * accumulating in the workload's accumulate type. `stream` is NULL on cpu. */
    int (*gemm)(void *self, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, const void *b,
                int64_t ldb, void *c, int64_t ldc, void *stream);
    void *self;
} kt_vendor;

/* Host-driven collectives over the ranks (gloo on cpu, NCCL on cuda). Each returns 0 or an error code. */
typedef struct kt_host {
    /* Gathers `counts[q]` bytes of every rank q into `recv`, rank after rank. */
    int (*all_gather)(void *self, const void *send, void *recv, const uint64_t *counts, void *stream);
    int (*barrier)(void *self, void *stream);
    void *self;
} kt_host;

typedef struct kt_context {
    uint32_t abi_version;
    uint32_t rank;
    uint32_t ranks;
    uint32_t threads; /* CPU threads that this rank may use, this one included */
    uint32_t dimension_count;
    const kt_named_value *dimensions;
    uint32_t tunable_count; /* run-time tunables */
    const kt_named_value *tunables;
    uint32_t sets;
    const kt_buffer_set *buffers; /* `sets` of them */
    void *scratch;
    uint64_t scratch_bytes;
    void *const *window; /* window[q]: the further symmetric memory of rank q */
    uint64_t window_bytes;
    /* signals[q]: the signal area of rank q, `signal_words` words. Store to a peer with release order,
     * load one's own with acquire order, compare with the epoch. */
    uint64_t *const *signals;
    uint32_t signal_words;
    const kt_vendor *vendor;
    const kt_host *host;
    void *stream;              /* cuda: the caller's stream */
    void *const *side_streams; /* cuda */
    void *device_comm;         /* cuda: ncclDevComm* in memory of the host, if `nccl_windows` was asked for */
    /* Records why the kernel fails. Copies the text. */
    void (*fail)(void *self, const char *reason);
    void *fail_self;
} kt_context;

/* The four functions. `dimensions` and `tunables` are those of the shape that comes next. */
int kerneltui_requirements(const kt_named_value *dimensions, uint32_t dimension_count,
                           const kt_named_value *tunables, uint32_t tunable_count, uint32_t rank,
                           uint32_t ranks, kt_requirements *out);
int kerneltui_setup(const kt_context *ctx, void **state);
int kerneltui_run(void *state, uint32_t set, uint64_t epoch, void *stream);
int kerneltui_teardown(void *state);

/* Finds a named value, or `fallback`. */
static inline int64_t kt_value(const kt_named_value *values, uint32_t count, const char *name,
                               int64_t fallback) {
    for (uint32_t i = 0; i < count; ++i) {
        const char *a = values[i].name;
        const char *b = name;
        while (*a && *a == *b) {
            ++a;
            ++b;
        }
        if (*a == *b) return values[i].value;
    }
    return fallback;
}

/* Finds a tensor of a buffer set by name, or NULL. */
static inline const kt_tensor *kt_find(const kt_buffer_set *set, const char *name) {
    for (uint32_t i = 0; i < set->tensor_count; ++i) {
        const char *a = set->tensors[i].name;
        const char *b = name;
        while (*a && *a == *b) {
            ++a;
            ++b;
        }
        if (*a == *b) return &set->tensors[i];
    }
    return 0;
}

/* Where a tensor begins in its NCCL window, on every rank. */
static inline uint64_t kt_window_offset(const kt_tensor *tensor) {
    return (uint64_t)(uintptr_t)tensor->local % 4096;
}

/* First row of rank r when `rows` rows are shared out over `ranks` ranks. */
static inline int64_t kt_first_row(int64_t rows, int64_t r, int64_t ranks) { return r * rows / ranks; }

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
