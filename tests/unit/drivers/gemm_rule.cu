/* Prints what a kernel file of gemm chooses for shapes: gemm_rule SMS M,N,K ... One line per shape: the tile, the
 * CTAs of a cluster and the clusters that share out K, the CTAs that share B; then the CTAs, the bytes of
 * shared memory and of scratch, and of wide tiles and those in turn the whole ones, the shared ones, and the parts of each. The
 * file is named by -DKERNEL. */
#include KERNEL

#include <cstdio>

int main(int count, char **shapes) {
    int sms = 0;
    if (count < 2 || std::sscanf(shapes[1], "%d", &sms) != 1) return 2;
    for (int i = 2; i < count; ++i) {
        long long m, n, k;
        if (std::sscanf(shapes[i], "%lld,%lld,%lld", &m, &n, &k) != 3) return 2;
        State s{};
        kt_context ctx{};
        s.ctx = &ctx;
        s.m = m;
        s.n = n;
        s.k = k;
        s.sms = sms;
        s.choice = choose(m, n, k, s.sms, nullptr, 0);
        s.kind = kind_of(s.choice.tile);
        size_grid(s);
        WidePlan plan{0, 0, 0, 0};
        if (stays(s.choice.tile)) plan = wide_plan(s.choice.tile, m, n, k, s.sms, nullptr, 0);
        std::printf("%lld,%lld,%lld %d %d %d %d %u %d %llu %lld %lld %lld\n", m, n, k, s.choice.tile,
                    s.choice.slices, s.choice.parts, s.choice.share, s.ctas, s.depth.shared_bytes,
                    (unsigned long long)scratch_bytes(s.choice, m, n, k, s.sms, nullptr, 0),
                    (long long)plan.whole, (long long)plan.shared, (long long)plan.parts);
    }
    return 0;
}
