"""Every rule about device code: what it finds, and the nearest text that it must leave alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerneltui.evaluation.device_lint import LintContext, lint_device_code
from kerneltui.targets.cuda.network import gin_missing

KERNELS = sorted((Path(__file__).parents[2] / "kernels" / "gemm_allgather").glob("*.cu"))
GIN = LintContext(nccl_code=22809, gin=True)
BULK = 'asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(d));'
LOAD = (
    'asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes'
    ' [%0], [%1, {%2, %3}], [%4];" :: "r"(s));'
)
WAIT_ALL = 'asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");'
WAIT_READ = 'asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");'
FENCE = 'asm volatile("fence.proxy.async;" ::: "memory");'
SHARED_FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
FLAG = 'asm volatile("st.release.sys.global.u64 [%0], %1;" :: "l"(f), "l"(e));'
WAIT_FLAG = 'asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(f));'
HELPERS = (
    f"__device__ void put(void* d) {{ {BULK} }}\n"
    f"__device__ void settle() {{ {WAIT_ALL} {FENCE} }}\n"
    f"__device__ void tell(uint64_t* f, uint64_t e) {{ {FLAG} }}\n"
)
SESSION = "ncclLsaBarrierSession<ncclCoopCta> bar(ncclCoopCta(), dc, ncclTeamTagLsa(), blockIdx.x);"


def kernel(body: str) -> str:
    return f"__global__ void k(ncclDevComm dc, uint64_t* f) {{\n{body}\n}}\n"


def host(body: str) -> str:
    return f"int f() {{\n{body}\n}}\n"


EARLY = "attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;"
CASES = {
    "L03 old": (
        host("ncclDevCommRequirements r = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;"),
        host("ncclDevCommRequirements r = {};"),
        GIN,
    ),
    "L03 new": (
        host("ncclDevCommRequirements r = {};"),
        host("ncclDevCommRequirements r = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;"),
        LintContext(nccl_code=22907),
    ),
    "L04": (kernel("ncclGin gin(dc, 0);"), kernel("int ncclGinger = 0;"), LintContext()),
    "L05": (
        host("if (ncclDevCommCreate(c, &r, &d)) return 1;\nk<<<1, 1>>>(d); cudaGetLastError();"),
        host("if (ncclDevCommCreate(c, &r, &d)) return 1;\ncudaGetLastError();\nk<<<1, 1>>>(d);"),
        GIN,
    ),
    "L06": (
        host("cudaMemcpyAsync(a, b, n, cudaMemcpyDeviceToDevice, s);"),
        host(
            "cudaError_t e = cudaMemcpyAsync(a, b, n, cudaMemcpyDeviceToDevice, s);\n"
            "if (!e) e = cudaEventRecord(x, s);\nCHECK(cudaEventRecord(x, s));\ncudaFree(a);\n"
            "(void)cudaEventRecord(x, s);\nreturn cudaEventRecord(x, s);"
        ),
        GIN,
    ),
    "L06 guarded": (
        host("if (x) cudaEventRecord(x, s);"),
        host("if (x) cudaEventDestroy(x);"),
        GIN,
    ),
    "L06 window": (
        host("int e = ncclCommWindowRegister(c, p, n, &win, 1);\nreturn e;"),
        host("int e = ncclCommWindowRegister(c, p, n, &win, 1);\nreturn e || !win;"),
        GIN,
    ),
    "L10": (
        kernel(
            f"{SESSION}\nfloat* d = (float*)ncclGetLsaPointer(w, 0, p);\nd[threadIdx.x] = 1;\n"
            "bar.sync(ncclCoopCta(), cuda::memory_order_relaxed);"
        ),
        kernel(
            f"{SESSION}\nbar.sync(ncclCoopCta(), cuda::memory_order_relaxed);\n"
            "float* d = (float*)ncclGetLsaPointer(w, 0, p);\nd[threadIdx.x] = 1;\n"
            "bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);"
        ),
        GIN,
    ),
    "L10 half": (
        kernel(f"{SESSION}\nbar.sync(ncclCoopCta(), cuda::memory_order_release);"),
        kernel(f"{SESSION}\nbar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);"),
        GIN,
    ),
    "L10 pull": (
        kernel(
            f"{SESSION}\nfloat* own = (float*)ncclGetLocalPointer(w, 0);\nown[i] = 1;\n"
            "bar.sync(ncclCoopCta(), cuda::memory_order_relaxed);\n"
            "const float* d = (const float*)ncclGetLsaPointer(w, 0, p);\nx = d[i];"
        ),
        kernel(
            f"{SESSION}\nbar.sync(ncclCoopCta(), cuda::memory_order_relaxed);\n"
            "float* own = (float*)ncclGetLocalPointer(w, 0);\nown[i] = 1;\n"
            "bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);\n"
            "const float* d = (const float*)ncclGetLsaPointer(w, 0, p);\nx = d[i];"
        ),
        GIN,
    ),
    "L11": (
        kernel("gin.put(team, peer, w, 0, w, 0, n);\ngin.flush(ncclCoopCta());"),
        kernel(
            "gin.put(team, peer, w, 0, w, 0, n, ncclGin_SignalInc{0}, ncclGin_None{}, ncclCoopCta());"
            "\ngin.flush(ncclCoopCta());"
        ),
        GIN,
    ),
    "L12": (
        kernel("gin.waitSignalMeetShadow(ncclCoopThread(), 0);"),
        kernel("before = gin.readSignal(0);\ngin.waitSignalMeetShadow(ncclCoopThread(), 0);"),
        GIN,
    ),
    "L12 fixed": (
        kernel("gin.waitSignal(ncclCoopThread(), 0, 4);"),
        kernel("gin.waitSignal(ncclCoopThread(), 0, before + 4);"),
        GIN,
    ),
    "L13": (
        kernel("a(ncclGin_SignalInc{3});\nb(ncclGin_SignalAdd{3, 2});"),
        kernel("a(ncclGin_SignalInc{3});\nb(ncclGin_SignalAdd{4, 2});"),
        GIN,
    ),
    "L14": (
        kernel("if (threadIdx.x < 32) {\n__syncthreads();\n}"),
        kernel("if (threadIdx.x < 32) {\n__syncwarp();\n}\n__syncthreads();"),
        GIN,
    ),
    "L14 session": (
        kernel(
            f"{SESSION}\nint t = threadIdx.x;\n"
            "if (t == 0) bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);"
        ),
        kernel(f"{SESSION}\nif (n > 0) bar.sync(ncclCoopCta(), cuda::memory_order_acq_rel);"),
        GIN,
    ),
    "L14 return": (
        kernel("int i = blockIdx.x * 32 + threadIdx.x;\nif (i >= n) return;\n__syncthreads();"),
        kernel(
            "if (blockIdx.x >= n) return;\n__syncthreads();\nif (threadIdx.x) return;\nf[0] = 1;"
        ),
        GIN,
    ),
    "L15": (
        kernel(f"{SESSION}\n{SESSION.replace('bar(', 'other(')}"),
        kernel(f"{{ {SESSION} }}\n{{ {SESSION.replace('bar(', 'other(')} }}"),
        GIN,
    ),
    "L16": (
        kernel("void* p = ncclGetPeerPointer(w, 0, peer);"),
        kernel("if (peer < dc.lsaSize) p = ncclGetPeerPointer(w, 0, peer);"),
        GIN,
    ),
    "L17": (kernel("ncclCoopWarpSpan s(0, 4, 15);"), kernel("ncclCoopWarpSpan s(0, 4, 14);"), GIN),
    "L17 barrier": (
        kernel('ncclCoopWarpSpan s(0, 4, 2);\nasm volatile("bar.sync 3, 128;");'),
        kernel('ncclCoopWarpSpan s(0, 4, 2);\nasm volatile("bar.sync 5, 128;");'),
        GIN,
    ),
    "L18": (
        kernel(
            "ncclGin a(dc, 0);\nncclGin b(dc, 1);\na.put(t, p, w, 0, w, 0, n, ncclGin_SignalInc{5});\n"
            "b.waitSignal(ncclCoopThread(), 5, x);"
        ),
        kernel(
            "ncclGin a(dc, 0);\nncclGin b(dc, 1);\na.put(t, p, w, 0, w, 0, n, ncclGin_SignalInc{5});\n"
            "a.waitSignal(ncclCoopThread(), 5, x);"
        ),
        GIN,
    ),
    "L19": (
        kernel("gin.resetSignal(0);"),
        kernel("if (threadIdx.x == 0) gin.resetSignal(0);\n__syncthreads();"),
        GIN,
    ),
    "L20": (
        kernel("gin.waitCounter(ncclCoopThread(), 0, 1, 32);"),
        kernel("gin.waitCounter(ncclCoopThread(), 0, 1);"),
        GIN,
    ),
    "L20 shadow": (
        kernel("gin.waitSignalFollowShadow(ncclCoopThread(), 0, 1, &b, &d);"),
        kernel(
            "gin.waitSignalFollowShadow(ncclCoopThread(), 0, 1, &b, &d);\n"
            "if (threadIdx.x == 0) gin.increaseSignalShadow(0, d);"
        ),
        GIN,
    ),
    "L21": (
        kernel("g.put(t, p, w, 0, w, 0, n, ncclGin_SignalInc{0});\ng.flush(ncclCoopCta());"),
        kernel("g.put(t, p, w, 0, w, 0, n, ncclGin_SignalInc{0});\ng.flush(ncclCoopThread());"),
        GIN,
    ),
    "L23": (
        kernel(
            "g.put(t, p, w, 0, w, 0, n, ncclGin_SignalInc{0}, a, c, d, cuda::thread_scope_device);"
        ),
        kernel("g.put(t, p, w, 0, w, 0, n, ncclGin_SignalInc{0}, a, c, d);"),
        GIN,
    ),
    "L25": (
        kernel("while (*(volatile uint64_t*)f < epoch) {}"),
        kernel("while (load_acquire(f) < epoch) {}"),
        GIN,
    ),
    "L25 scope": (
        kernel('asm volatile("st.release.gpu.global.u64 [%0], %1;" :: "l"(peer_flag), "l"(e));'),
        kernel('asm volatile("st.release.gpu.global.u64 [%0], %1;" :: "l"(counter), "l"(e));'),
        GIN,
    ),
    "L26": (
        kernel(
            "for (int p = 0; p < dc.lsaSize; p++) {\nfloat* d = (float*)ncclGetLsaPointer(w, 0, p);\n"
            "for (int i = 0; i < n; i++) d[i] = s[i];\n}"
        ),
        kernel(
            "for (int p = 0; p < dc.lsaSize; p++) {\nint q = (dc.lsaRank + p) % dc.lsaSize;\n"
            "float* d = (float*)ncclGetLsaPointer(w, 0, q);\nfor (int i = 0; i < n; i++) d[i] = s[i];\n}"
        ),
        GIN,
    ),
    "L28": (kernel(f"{BULK}\n{FLAG}"), kernel(f"{BULK}\n{WAIT_ALL}\n{FENCE}\n{FLAG}"), GIN),
    "L28 read": (
        kernel(f"{BULK}\n{WAIT_READ}\n{FENCE}\n{FLAG}"),
        kernel(f"{FLAG}\n{BULK}\n{WAIT_READ}\n{WAIT_ALL}"),
        GIN,
    ),
    "L28 fence": (
        kernel(f"{BULK}\n{WAIT_ALL}\n{SHARED_FENCE}\n{FLAG}"),
        kernel(f"{SHARED_FENCE}\n{BULK}\n{WAIT_ALL}\n{FENCE}\n{FLAG}"),
        GIN,
    ),
    "L28 helpers": (
        HELPERS + kernel("put(d);\ntell(f, e);\nsettle();"),
        HELPERS + kernel("put(d);\nsettle();\ntell(f, e);"),
        GIN,
    ),
    "L28 template": (
        "template <int N> " + HELPERS + kernel("put<3>(d);\ntell(f, e);"),
        "template <int N> " + HELPERS + kernel("put<3>(d);\nsettle();\ntell(f, e);"),
        GIN,
    ),
    "L28 loop": (
        HELPERS + kernel("for (;;) {\nif (i) tell(f, e);\nput(d);\n}"),
        HELPERS + kernel("for (;;) {\nif (i) { settle(); tell(f, e); }\nput(d);\n}"),
        GIN,
    ),
    "L29": (
        kernel(f"do {{ {WAIT_FLAG} }} while (v < e);\n__syncthreads();\n{LOAD}"),
        kernel(f"do {{ {WAIT_FLAG} }} while (v < e);\n{FENCE}\n__syncthreads();\n{LOAD}"),
        GIN,
    ),
    "L29 roles": (
        kernel(f"if (threadIdx.x == 0) {{ {WAIT_FLAG} }}\n__syncthreads();\n{LOAD}"),
        kernel(f"if (warp == 3) {{ {WAIT_FLAG} }} else {{ {LOAD} }}"),
        GIN,
    ),
    "L30": (
        kernel("const float* p = (const float*)ncclGetLocalPointer(w, 0);\nx = __ldg(p + i);"),
        kernel("const float* p = a.local;\nx = __ldg(p + i);"),
        GIN,
    ),
    "L31": (
        f"{EARLY}\n" + kernel("c[0] = a[0];"),
        f"{EARLY}\n" + kernel('asm volatile("griddepcontrol.wait;" ::: "memory");\nc[0] = a[0];'),
        GIN,
    ),
    "L31 runtime": (
        "attribute.val.programmaticStreamSerializationAllowed = 1;\n" + kernel("c[0] = a[0];"),
        "attribute.val.programmaticStreamSerializationAllowed = 1;\n"
        + kernel("cudaGridDependencySynchronize();\nc[0] = a[0];"),
        GIN,
    ),
    "L30 asm": (
        kernel('asm volatile("ld.global.nc.v4.u32 {%0}, [%1];" : "=r"(x) : "l"(window + i));'),
        kernel('asm volatile("ld.global.nc.v4.u32 {%0}, [%1];" : "=r"(x) : "l"(weights + i));'),
        GIN,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_red(name: str) -> None:
    red, _, context = CASES[name]
    rules = {finding.rule for finding in lint_device_code(red, context)}
    assert name.split()[0] in rules


@pytest.mark.parametrize("name", CASES)
def test_green(name: str) -> None:
    _, green, context = CASES[name]
    found = [f for f in lint_device_code(green, context) if f.rule == name.split()[0]]
    assert not found


def test_findings_have_lines_levels_and_one_line_of_text() -> None:
    text = kernel(f"{BULK}\n{FLAG}\nwhile (*(volatile uint64_t*)f < e) {{}}")
    found = lint_device_code(text)
    assert [(f.rule, f.level, f.line) for f in found] == [("L28", "error", 3), ("L25", "warn", 4)]
    assert all("\n" not in f.text for f in found)


def test_comments_and_texts_are_no_code() -> None:
    text = kernel('// while (*(volatile int*)flag < 1);\nconst char* s = "__ldg(window)";')
    assert lint_device_code(text) == ()


@pytest.mark.parametrize(
    "text", ["", "{", "}", "if (", "__global__ void k(", 'asm("', "/*", "#define A("]
)
def test_a_broken_text_is_no_fault_of_the_lint(text: str) -> None:
    assert lint_device_code(text) == ()


@pytest.mark.parametrize("file", KERNELS, ids=lambda file: file.name)
def test_the_kernels_of_the_library_are_clean(file: Path) -> None:
    assert lint_device_code(file.read_text(), GIN) == ()


def test_a_kernel_with_gin_is_refused_in_one_line_where_there_is_none() -> None:
    (kernel,) = [file for file in KERNELS if file.name == "gin_put.cu"]
    known = LintContext(nccl_code=22809, gin=False, gin_missing="no port of mlx5_0 is active")
    (finding,) = lint_device_code(kernel.read_text(), known)
    assert finding.rule == "L04"
    assert finding.text.startswith("needs NCCL with GIN: no port of mlx5_0 is active; ")


def test_whether_a_network_is_there(tmp_path: Path) -> None:
    assert "no RDMA network adapter" in gin_missing(tmp_path)
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    assert gin_missing(tmp_path) == "no port of mlx5_0 is active"
    (port / "state").write_text("4: ACTIVE\n")
    assert not gin_missing(tmp_path)
