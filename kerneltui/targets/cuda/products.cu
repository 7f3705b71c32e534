/* Products of the vendor's libraries as functions that a sample calls like a kernel's `run`; the timing
 * harness stands before this text. A baseline is called from C as a kernel is, so that the time its host
 * takes to launch can be compared with a kernel's.
 */

namespace {

/* cublasLtMatmul of cublasLt.h */
using LtMatmul = int (*)(void *, void *, const void *, const void *, void *, const void *, void *, const void *,
                         const void *, void *, void *, void *, const void *, void *, size_t, void *);

} // namespace

extern "C" {

/* C = A B on buffer sets, row-major: A is m x k, B is k x n, or n x k where it is transposed. */
struct ht_product {
    const void *const *a; /* for every buffer set */
    const void *const *b;
    void *const *c;
    int64_t m, n, k;
    ht_vendor *vendor; /* of cuBLAS */
    uint32_t transposed;
    uint32_t failed; /* the first status that was no success */
    /* of cuBLASLt */
    LtMatmul matmul;
    void *handle;
    void *description;
    void *b_layout, *a_layout, *c_layout;
    uint64_t algorithm[8];
    void *workspace;
    uint64_t workspace_bytes;
};

/* cublasGemmEx, sums in float32. BLAS is column major, so the operands are swapped. */
int ht_run_product(void *state, uint32_t set, uint64_t, void *stream) {
    ht_product *p = static_cast<ht_product *>(state);
    int status;
    if (!p->transposed) {
        status = ht_gemm(p->vendor, p->m, p->n, p->k, p->a[set], p->k, p->b[set], p->n, p->c[set], p->n, stream);
    } else {
        constexpr int kTranspose = 1;
        void *handle = vendor_handle(p->vendor, stream);
        if (!handle) return 4;
        const int type = p->vendor->dtype == KT_FLOAT16 ? CUDA_R_16F : CUDA_R_16BF;
        const int m = static_cast<int>(p->m), n = static_cast<int>(p->n), k = static_cast<int>(p->k);
        const float one = 1, zero = 0;
        status = p->vendor->gemm(handle, kTranspose, kNoTranspose, n, m, k, &one, p->b[set], type, k, p->a[set],
                                 type, k, &zero, p->c[set], type, n, kCompute32F, kDefaultAlgorithm);
        if (status) status += 100;
    }
    if (status && !p->failed) p->failed = static_cast<uint32_t>(status);
    return status;
}

/* cublasLtMatmul with the algorithm that was chosen. */
int ht_run_lt_product(void *state, uint32_t set, uint64_t, void *stream) {
    ht_product *p = static_cast<ht_product *>(state);
    const float one = 1, zero = 0;
    const int status =
        p->matmul(p->handle, p->description, &one, p->b[set], p->b_layout, p->a[set], p->a_layout, &zero,
                  p->c[set], p->c_layout, p->c[set], p->c_layout, p->algorithm, p->workspace, p->workspace_bytes,
                  stream);
    if (status && !p->failed) p->failed = static_cast<uint32_t>(100 + status);
    return status ? 100 + status : 0;
}

} /* extern "C" */
