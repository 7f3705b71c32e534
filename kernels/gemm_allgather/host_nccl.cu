/* host_nccl.cu - C = A B with the rows of A sharded over the ranks, driven by the host.
 *
 * Each rank multiplies its shard with the vendor GEMM straight into its own rows of C. Then NCCL gathers
 * the rows of all ranks in place: C is row major, so a rank's rows are contiguous and the gathered blocks
 * land where they belong, without a staging copy.
 *
 * It is the seed that the fast path turns into a device-initiated kernel, and the baseline of the others.
 */
#include <kerneltui/kernel.h>

#include <cstdint>
#include <new>
#include <vector>

// kerneltui: directive backend host
// kerneltui: directive issuer dedicated
// kerneltui: directive placement sequential
// kerneltui: directive sync world
// kerneltui: directive chunk_bytes = 0

namespace {

struct State {
    const kt_context *ctx;
    int64_t rows, n, k; /* rows: of this rank */
    int64_t first_row;
    std::vector<uint64_t> bytes; /* of every rank's rows of C */
};

int fail(const kt_context *ctx, const char *reason) {
    ctx->fail(ctx->fail_self, reason);
    return 1;
}

}  // namespace

int kerneltui_requirements(const kt_named_value *, uint32_t, const kt_named_value *, uint32_t, uint32_t,
                           uint32_t, kt_requirements *out) {
    out->abi_version = KERNELTUI_ABI_VERSION;
    out->host_collectives = 1;
    return 0;
}

int kerneltui_setup(const kt_context *ctx, void **out) {
    const int64_t m = kt_value(ctx->dimensions, ctx->dimension_count, "M", 0);
    const int64_t n = kt_value(ctx->dimensions, ctx->dimension_count, "N", 0);
    const int64_t k = kt_value(ctx->dimensions, ctx->dimension_count, "K", 0);
    if (m < 1 || n < 1 || k < 1) return fail(ctx, "gemm_allgather needs the dimensions M, N and K");
    const kt_tensor *c = ctx->sets ? kt_find(&ctx->buffers[0], "C") : nullptr;
    if (!c || (c->dtype != KT_BFLOAT16 && c->dtype != KT_FLOAT16 && c->dtype != KT_FLOAT32))
        return fail(ctx, "gemm_allgather needs the tensor C in bfloat16, float16 or float32");
    const uint64_t item = c->dtype == KT_FLOAT32 ? 4 : 2;

    State *state = new (std::nothrow) State{};
    if (!state) return fail(ctx, "out of memory in setup");
    state->ctx = ctx;
    state->n = n;
    state->k = k;
    state->first_row = kt_first_row(m, ctx->rank, ctx->ranks);
    state->rows = kt_first_row(m, ctx->rank + 1, ctx->ranks) - state->first_row;
    for (uint32_t r = 0; r < ctx->ranks; ++r) {
        const int64_t rows = kt_first_row(m, r + 1, ctx->ranks) - kt_first_row(m, r, ctx->ranks);
        state->bytes.push_back(uint64_t(rows) * uint64_t(n) * item);
    }
    *out = state;
    return 0;
}

int kerneltui_run(void *opaque, uint32_t set, uint64_t epoch, void *stream) {
    const State *state = static_cast<const State *>(opaque);
    const kt_context *ctx = state->ctx;
    const kt_tensor *a = kt_find(&ctx->buffers[set], "A");
    const kt_tensor *b = kt_find(&ctx->buffers[set], "B");
    const kt_tensor *c = kt_find(&ctx->buffers[set], "C");
    if (!a || !b || !c) return fail(ctx, "gemm_allgather needs the tensors A, B and C");
    (void)epoch; /* the collective keeps the ranks in step */

    // kerneltui: evolve begin schedule
    const uint64_t row_bytes = c->bytes / uint64_t(c->shape[0]);
    char *const own_rows = static_cast<char *>(c->local) + uint64_t(state->first_row) * row_bytes;
    if (state->rows > 0 && ctx->vendor->gemm(ctx->vendor->self, state->rows, state->n, state->k, a->local,
                                             state->k, b->local, state->n, own_rows, state->n, stream))
        return fail(ctx, "the vendor GEMM failed");
    if (ctx->host->all_gather(ctx->host->self, own_rows, c->local, state->bytes.data(), stream))
        return fail(ctx, "the all-gather failed");
    // kerneltui: evolve end
    return 0;
}

int kerneltui_teardown(void *opaque) {
    delete static_cast<State *>(opaque);
    return 0;
}
