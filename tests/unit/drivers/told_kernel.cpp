/* A kernel that only tells what it was given: into its scratch, and of a call into C. */
#include <kerneltui/kernel.h>

// kerneltui: tunable LANES in 1 2
#define LANES 1
// kerneltui: runtime TURN in 0 1 default 1
// kerneltui: runtime DEPTH in 2 4 default 4

static const kt_context *given;

extern "C" int kerneltui_requirements(const kt_named_value *dimensions, uint32_t dimension_count,
                                      const kt_named_value *tunables, uint32_t tunable_count, uint32_t rank,
                                      uint32_t ranks, kt_requirements *out) {
    out->abi_version = kt_value(dimensions, dimension_count, "K", 0) == 7 ? 99 : KERNELTUI_ABI_VERSION;
    out->scratch_bytes = 256;
    out->signal_words = uint32_t(100 * ranks + 10 * rank + kt_value(tunables, tunable_count, "TURN", 9));
    return 0;
}

extern "C" int kerneltui_setup(const kt_context *ctx, void **state) {
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", -1);
    if (m == 13) {
        ctx->fail(ctx->fail_self, "13 rows are unlucky");
        return 3;
    }
    const kt_tensor &c = ctx->buffers[ctx->sets - 1].tensors[2];
    const int64_t seen[] = {
        LANES,
        m,
        kt_value(ctx->dimensions, ctx->dimension_count, "N", -1),
        kt_value(ctx->tunables, ctx->tunable_count, "TURN", -1),
        kt_value(ctx->tunables, ctx->tunable_count, "DEPTH", -1),
        int64_t(ctx->rank),
        int64_t(ctx->ranks),
        int64_t(ctx->sets),
        int64_t(ctx->scratch_bytes),
        int64_t(ctx->signals[1]),
        int64_t(ctx->signal_words),
        int64_t(ctx->side_streams[1]),
        int64_t(ctx->stream),
        int64_t(ctx->vendor->self),
        int64_t(ctx->host->self),
        int64_t(c.peers[1]),
        c.shape[1],
        int64_t(c.bytes),
    };
    for (unsigned i = 0; i < sizeof seen / sizeof *seen; ++i) static_cast<int64_t *>(ctx->scratch)[i] = seen[i];
    given = ctx;
    *state = ctx->scratch;
    return 0;
}

extern "C" int kerneltui_run(void *, uint32_t set, uint64_t epoch, void *) {
    *static_cast<uint64_t *>(given->buffers[set].tensors[2].local) = epoch;
    return 0;
}

extern "C" int kerneltui_teardown(void *) { return 5; }
