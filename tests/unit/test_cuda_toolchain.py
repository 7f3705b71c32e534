"""Building CUDA kernels: with nvcc where there is one, and with programs in its place elsewhere."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from kerneltui.targets.cuda import packages
from kerneltui.targets.cuda.elf import read_symbols
from kerneltui.targets.cuda.packages import (
    Nccl,
    find_disassembler,
    find_nccl,
    find_toolkit,
    refuse_other_nccl,
)
from kerneltui.targets.cuda.policy import PolicyRefusal
from kerneltui.targets.cuda.toolchain import CudaToolchain, arch_of
from kerneltui.targets.errors import CompileFailure, TargetError
from kerneltui.targets.locks import LockTimeout, MachineLock
from kerneltui.targets.python import PythonBuilds, extension_file
from kerneltui.targets.torch_files import torch_files

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

import python_kernels  # noqa: E402

GOOD = """\
#include <kerneltui/kernel.h>
#include <cuda_runtime.h>
__global__ void __launch_bounds__(128) twice(float4* x) {
  __shared__ float4 s[128];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  float4 v = s[127 - threadIdx.x];
  x[threadIdx.x] = make_float4(2 * v.x, 2 * v.y, 2 * v.z, 2 * v.w);
}
extern "C" int kerneltui_run(void* state, uint32_t, uint64_t, void* stream) {
  twice<<<1, 128, 0, (cudaStream_t)stream>>>((float4*)state);
  return (int)cudaGetLastError();
}
"""
WGMMA = """\
#include <cstdint>
__device__ void mma(float (&d)[4], uint64_t a) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %4, 1, 1, 1, 0, 0;"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a));
}
__global__ void serial(float* o, uint64_t a, int n) {
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; i++) { mma(d, a); d[0] += 1.0f; }
  o[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
__global__ void ignored(float* o) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  o[threadIdx.x] = 1;
}
"""
HIDDEN = {
    "a name behind two macros": """
#define J2(a, b) a##b
#define J(a, b) J2(a, b)
extern "C" int J(cuMulti, castUnbind)(int);
int f() { return J(cuMulti, castUnbind)(3); }
""",
    "PTX made of a macro's argument": """
#define J2(a, b) a##b
#define J(a, b) J2(a, b)
#define S2(x) #x
#define S(x) S2(x)
__global__ void k(float* p) {
  asm volatile(S(J(multi, mem)) ".st.relaxed.sys.global.f32 [%0], %1;" :: "l"(p), "f"(1.0f));
}
""",
    "PTX for the device alone": """
#define J2(a, b) a##b
#define J(a, b) J2(a, b)
#define S2(x) #x
#define S(x) S2(x)
__global__ void k(float* p) {
#ifdef __CUDA_ARCH__
  asm volatile(S(J(multi, mem)) ".st.relaxed.sys.global.f32 [%0], %1;" :: "l"(p), "f"(1.0f));
#endif
}
""",
}


LOOKS = """
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <string>
void *find(int i) {
  void *p = nullptr;
  CUdriverProcAddressQueryResult q;
  cudaDriverEntryPointQueryResult r;
  std::string n = i ? "cuMemAlloc" : "cuMulti";
  n += "castCreate";
  %s;
  return p;
}
"""
AT_RUN_TIME = {
    "runtime": "cudaGetDriverEntryPointByVersion(n.c_str(), &p, 12000, 0, &r)",
    "driver": "cuGetProcAddress(n.c_str(), &p, 12000, 0, &q)",
    "linker": "p = dlsym(RTLD_DEFAULT, n.c_str())",
    "pointer": "auto look = &dlsym; p = look(RTLD_DEFAULT, n.c_str())",
    "alias": 'extern void *look(void *, const char *) __asm__("dl" "sym"); p = look(0, n.c_str())',
}
BY_LITERALS = {
    "runtime": 'cudaGetDriverEntryPointByVersion("cuMemAlloc", &p, 12000, 0, &r)',
    "driver": 'cuGetProcAddress("cu" "MemAlloc", &p, 12000, 0, &q)',
    "linker": 'p = dlsym(RTLD_DEFAULT, "cudaGetDevice")',
}


def has_nvcc() -> bool:
    try:
        find_toolkit()
    except TargetError:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason="no nvcc on this machine")


def make(folder: Path, arch: str = "sm_90a", nvcc: str | None = None) -> CudaToolchain:
    return CudaToolchain(folder / "cache", arch=arch, nvcc=nvcc, lock=MachineLock(folder))


def fake_nvcc(folder: Path, body: str) -> str:
    """A program that says it is nvcc, and does `body` when it shall compile."""
    path = folder / "nvcc"
    path.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '  --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0;;\n'
        f"  --dryrun) echo '#$ TOP={folder}'; exit 0;;\n"
        f"esac\n{body}\n"
    )
    path.chmod(0o755)
    return str(path)


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_kernel_is_built_once_and_reported(arch: str, tmp_path: Path) -> None:
    toolchain = make(tmp_path, arch)
    build = toolchain.compile(GOOD)
    again = toolchain.compile(GOOD)
    assert (build.cached, again.cached) == (False, True)
    assert build.library == again.library and build.library.read_bytes()[:4] == b"\x7fELF"
    report = toolchain.codegen(again)
    (kernel,) = report.kernels
    assert report.arch == arch and kernel.name == "twice(float4*)"
    assert (kernel.shared, kernel.max_threads, kernel.spill_loads) == (2048, 128, 0)
    assert 8 <= kernel.registers <= 64
    fits = kernel.occupancy(arch)
    assert fits is not None and fits.ctas == 16
    if find_disassembler(toolchain.toolkit):
        assert kernel.instructions["LDG.128"] == 1 and kernel.instructions["BAR"] == 1
    else:
        assert "nvidia-cuda-nvdisasm" in report.missing and not kernel.instructions
    assert toolchain.codegen(again) == report
    assert not list((tmp_path / "cache").glob("build-*"))


@needs_nvcc
def test_what_costs_speed_is_loud(tmp_path: Path) -> None:
    toolchain = make(tmp_path)
    findings = toolchain.codegen(toolchain.compile(WGMMA)).findings
    loud = [finding for finding in findings if finding.loud]
    serialised = [finding for finding in loud if "serialized" in finding.text]
    assert (
        serialised and serialised[0].line in (3, 4) and serialised[0].kernel.startswith("serial(")
    )
    ignored = [finding for finding in loud if "setmaxnreg" in finding.text]
    assert ignored and ignored[0].line == 12


@needs_nvcc
@pytest.mark.parametrize("name", HIDDEN)
def test_macros_hide_nothing(name: str, tmp_path: Path) -> None:
    toolchain = make(tmp_path)
    assert not toolchain.policy.check_source(HIDDEN[name]), "this test is about what the text hides"
    with pytest.raises(PolicyRefusal) as caught:
        toolchain.compile(HIDDEN[name])
    assert caught.value.findings[0].rule == "L01"
    assert not list((tmp_path / "cache").glob("*.so"))


@needs_nvcc
@pytest.mark.parametrize("name", AT_RUN_TIME)
def test_a_name_made_at_run_time_is_refused(name: str, tmp_path: Path) -> None:
    toolchain = make(tmp_path)
    text = LOOKS % AT_RUN_TIME[name]
    assert not toolchain.policy.check_source(text), "this test is about what the text hides"
    with pytest.raises(PolicyRefusal) as caught:
        toolchain.compile(text)
    assert {f.rule for f in caught.value.findings} == {"P03"}
    assert caught.value.findings[0].line == 12 and "as in" in caught.value.reason
    assert not list((tmp_path / "cache").glob("*.so"))


@needs_nvcc
@pytest.mark.parametrize("name", BY_LITERALS)
def test_a_name_written_as_a_literal_is_allowed(name: str, tmp_path: Path) -> None:
    assert make(tmp_path).compile(LOOKS % BY_LITERALS[name]).library.exists()


@pytest.mark.parametrize(
    "call", ['p = dlopen("libcuda.so.1", 2)', "CUmodule m; cuModuleLoadData(&m, n.data())"]
)
def test_loading_is_refused_before_the_compiler_is_asked(call: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyRefusal, match=r"kernel\.cu:12: block: P03: .* cannot be looked at"):
        make(tmp_path, nvcc="no-such-nvcc").compile(LOOKS % call)


@needs_nvcc
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("int f() { return 1 }\nint g() { return undeclared; }\n", "kernel.cu(1): error: expected"),
        ('#include "none.h"\n', "kernel.cu:1:10: fatal error: none.h: No such file"),
        ('\n__global__ void k() { asm("foo;"); }\n', "kernel.cu(2): ptxas kernel.ptx, line"),
        ('extern "C" int none(); int f() { return none(); }\n', "undefined reference to"),
    ],
    ids=["text", "header", "ptx", "link"],
)
def test_an_error_names_place_and_cause(source: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CompileFailure) as caught:
        make(tmp_path).compile(source)
    assert caught.value.reason.startswith(reason) or reason in caught.value.reason
    assert "\n" not in caught.value.reason and not caught.value.timed_out
    assert not list((tmp_path / "cache").glob("*"))


def test_a_message_of_any_length_is_short(tmp_path: Path) -> None:
    body = (
        "awk 'BEGIN { for (i = 1; i <= 40000; i++) "
        'print "kernel.cu(" i "): error: number " i " of many" }\' >&2; exit 1'
    )
    with pytest.raises(CompileFailure) as caught:
        make(tmp_path, nvcc=fake_nvcc(tmp_path, body)).compile("int a;")
    reason = "kernel.cu(1): error: number 1 of many (and 39999 more errors)"
    assert caught.value.reason == reason
    assert len(caught.value.log) < 140_000


def test_a_limit_ends_it(tmp_path: Path) -> None:
    toolchain = make(tmp_path, nvcc=fake_nvcc(tmp_path, "sleep 1000"))
    with pytest.raises(CompileFailure, match="stopped after") as caught:
        toolchain.compile("int a;", limit_s=0.5)
    assert caught.value.timed_out


def test_a_kernel_is_built_beside_what_is_timed_where_the_caller_says_so(tmp_path: Path) -> None:
    body = (
        "for f in cpp1.ii cpp4.ii ptx; do : > kernel.$f; done\n"
        "cp /bin/true kernel.o; cp kernel.cu kernel.so; cp kernel.cu kernel.cubin"
    )
    lock = MachineLock(tmp_path)
    toolchain = make(tmp_path, nvcc=fake_nvcc(tmp_path, body))
    held, done = threading.Event(), threading.Event()

    def burst() -> None:
        with lock.burst():
            held.set()
            done.wait(30)

    timing = threading.Thread(target=burst)
    timing.start()
    try:
        assert held.wait(10)
        build = toolchain.compile("int a;", needs_lock=False)
        assert build.library.read_text().startswith("int a;")
        assert toolchain.compile("int a;").cached, "what is there waits for nobody"
        with pytest.raises(LockTimeout):
            toolchain.compile("int b;", stop=lambda: True)
    finally:
        done.set()
        timing.join()


def test_a_stop_ends_a_compiler(tmp_path: Path) -> None:
    stop = threading.Event()
    toolchain = make(tmp_path, nvcc=fake_nvcc(tmp_path, "sleep 1000"))
    timer = threading.Timer(0.5, stop.set)
    timer.start()
    with pytest.raises(CompileFailure, match="stopped"):
        toolchain.compile("int a;", stop=stop.is_set)
    timer.join()


def test_another_policy_is_another_build(tmp_path: Path) -> None:
    from dataclasses import replace

    toolchain = make(tmp_path)
    other = replace(toolchain.policy, extra_environment={"A": "1"})
    assert other.digest != toolchain.policy.digest


def test_no_nvcc_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_nvcc_candidates", lambda nvcc: ["no-such-nvcc"])
    with pytest.raises(TargetError, match=r"install the CUDA toolkit .* or set CUDA_HOME"):
        make(tmp_path).compile("int a;")
    with pytest.raises(TargetError, match="no nvcc at"):
        make(tmp_path, nvcc="no-such-nvcc").compile("int a;")


def test_cuda_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    fake_nvcc(tmp_path / "bin", "exit 1")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    toolkit = find_toolkit()
    assert toolkit.nvcc == tmp_path / "bin" / "nvcc"
    assert (toolkit.version, toolkit.major) == ("13.0.88", 13)


def nccl_home(folder: Path, code: int) -> Path:
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "nccl.h").write_text(f"#define NCCL_VERSION_CODE {code}\n")
    return folder


def test_nccl_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_nccl(13, nccl_home(tmp_path / "a", 22809))
    assert (found.version, found.library) == ("2.28.9", None)
    monkeypatch.setenv("NCCL_HOME", str(tmp_path / "none"))
    with pytest.raises(TargetError, match="correct or unset NCCL_HOME"):
        find_nccl(13)


@pytest.mark.parametrize(
    ("installed", "match"),
    [
        ({}, "pip install nvidia-nccl-cu13"),
        ({"nvidia-nccl-cu12": "2.28.9"}, "pip uninstall nvidia-nccl-cu12, then pip install"),
        ({"nvidia-nccl-cu12": "2.28.9", "nvidia-nccl-cu13": "2.28.9"}, "overwrite each other"),
    ],
)
def test_a_wrong_nccl_has_a_remedy(
    installed: dict[str, str], match: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_HOME", raising=False)
    monkeypatch.setattr(packages, "_version_of", installed.get)
    monkeypatch.setattr(packages, "_SYSTEM_INCLUDES", ())
    with pytest.raises(TargetError, match=match) as caught:
        find_nccl(13)
    assert "\n" not in str(caught.value)


def test_a_loaded_nccl_that_is_not_the_headers_is_refused(tmp_path: Path) -> None:
    header = Nccl(tmp_path, None, 22809, 13, "nvidia-nccl-cu13 2.28.9")
    refuse_other_nccl(header, 22809)
    with pytest.raises(
        TargetError, match=r"NCCL 2\.29\.7 is loaded, but kernels are built for 2\.28\.9"
    ):
        refuse_other_nccl(header, 22907)


def test_sources_with_nccl_need_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_HOME", str(tmp_path / "none"))
    toolchain = make(tmp_path, nvcc=fake_nvcc(tmp_path, "exit 1"))
    with pytest.raises(TargetError, match="NCCL_HOME"):
        toolchain.compile("#include <nccl_device.h>\n")


@needs_nvcc
def test_an_extension_of_torch_is_compiled_and_held_to_the_policy(tmp_path: Path) -> None:
    text = python_kernels.EXTENSION
    toolchain = make(tmp_path)
    build = PythonBuilds(tmp_path / "builds", toolchain.compile).compile(text)
    symbols = read_symbols(extension_file(build.library))
    assert "aoti_torch_get_current_cuda_stream" in symbols.undefined
    hidden = HIDDEN["a name behind two macros"]
    with pytest.raises(PolicyRefusal, match="cuMulticastUnbind"):
        PythonBuilds(tmp_path / "builds", toolchain.compile).compile(
            text.replace("using bf16", f"{hidden}\nusing bf16")
        )


def test_without_headers_of_torch_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(TargetError, match="pip install torch"):
        torch_files()


def test_architectures() -> None:
    assert [arch_of(8, 0), arch_of(9, 0), arch_of(10, 0)] == ["sm_80", "sm_90a", "sm_100a"]
    with pytest.raises(TargetError, match="write it as sm_80"):
        CudaToolchain(Path("none"), arch="hopper")
