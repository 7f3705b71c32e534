"""What the machine forbids: found in every disguise, and not where it is legal."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerneltui.model.errors import DefinitionError
from kerneltui.targets.cuda.policy import DEFAULT_POLICY, load_policy

RED = {
    "name": ("L01", "CUresult r = cuMulticastCreate(&h, &p);"),
    "pointer": ("L01", "void* p = ncclGetLsaMultimemPointer(w, 0, dc);"),
    "torch": ("L01", "float* p = hdl->multicast_ptr;"),
    "switched on": ("L01", "req.lsaMultimem = true;"),
    "switched on by a number": ("L01", "req.lsaMultimem = 1;"),
    "thunder kittens": ("L01", "TKParallelTensor t(data, shape, true);"),
    "barrier": ("L01", "ncclLsaBarrierSession<ncclCoopCta> b(c, dc, ncclTeamTagLsa(), i, true);"),
    "inline PTX": ("L01", 'asm volatile("multimem.st.global.f32 [%0], %1;" :: "l"(p), "f"(x));'),
    "PTX in pieces": ("L01", 'asm("multi" /* */ "mem.red.global.add.f32 [%0], %1;" :: "l"(p));'),
    "PTX in escapes": ("L01", r'asm("m\x75ltimem.st.global.f32 [%0], %1;" :: "l"(p));'),
    "PTX in a raw text": ("L01", 'asm(R"(multimem.st.f32 [%0], %1;)" :: "l"(p));'),
    "PTX by a macro": ("L01", '#define ST "multimem.st.relaxed.sys.global.f32 [%0], %1;"'),
    "split line": ("L01", "cuMulti\\\ncastCreate(&h, &p);"),
    "split line with a space": ("L01", "cuMulti\\  \ncastCreate(&h, &p);"),
    "pasted": ("L01", "#define F cuMulti ## castCreate"),
    "pasted by a call": ("L01", "#define J(a, b) a##b\nint r = J(cuMulti, castCreate)(&h, &p);"),
    "pasted by a digraph": (
        "L01",
        "%:define J(a, b) a %:%: b\nint r = J(cuMulti, castCreate)(&h);",
    ),
    "pasted by many": ("L01", "#define J(a, ...) a##__VA_ARGS__\nJ(cuMulti, castCreate)(&h);"),
    "by name": ("L01", 'cudaGetDriverEntryPoint("cuMulticastCreate", &f, 0, &q);'),
    "variable": ("L01", 'const char* n = "NCCL_NVLS_ENABLE";'),
    "setenv": ("L02", 'setenv("A", "1", 1);'),
    "putenv": ("L02", "putenv(text);"),
    "clocks": ("P01", "nvmlDeviceSetGpuLockedClocks(d, 1000, 1000);"),
    "power": ("P01", "nvmlDeviceSetPowerManagementLimit(d, 1);"),
    "tool": ("P01", 'run("nvidia-smi -r -i 0");'),
    "reset": ("P01", "cudaDeviceReset();"),
    "asking for capture": ("P04", "cudaStreamIsCapturing(stream, &status);"),
    "asking for the graph": ("P04", "cuStreamGetCaptureInfo_v2(s, &status, 0, &g, 0, 0);"),
    "before the gate": ("P04", "cudaStreamUpdateCaptureDependencies(s, 0, 0, 1);"),
    "beside a kernel": (
        "P04",
        "attribute.id = cudaLaunchAttributeLaunchCompletionEvent;",
    ),
    "asking torch": ("P04", "x = is_current_stream_capturing();"),
    "other lines": ("P02", '#line 1 "cuda.h"\nint a;'),
    "marker": ("P02", '# 1 "cuda.h"\nint a;'),
}
GREEN = {
    "cluster multicast": 'asm("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx'
    '::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" :: "r"(s));',
    "names of cluster multicast": "uint16_t multicast_mask = 3; tma_load_multicast(a, multicast_mask);",
    "comment": "// no multimem, no cuMulticastCreate, no setenv\n/* multimem.st.global */ int a;",
    "continued comment": "// as in \\\n cuMulticastCreate(h)\nint a;",
    "prose": 'fail(self, "multimem is not used here; setenv neither");',
    "switched off": "req.lsaMultimem = false;",
    "barrier": "ncclLsaBarrierSession<ncclCoopCta> b(c, dc, ncclTeamTagLsa(), blockIdx.x);",
    "harmless pasting": "#define J(a, b) a##b\nint J(x, 1) = 0;",
    "an own graph": "cudaStreamBeginCapture(s, m); cudaStreamEndCapture(s, &g); cudaGraphLaunch(e, s);",
    "own names": "int environment = 0; void reset_device(); int setenv_count;",
    "digit separators": "int n = 1'000'000; int m = 2'0;",
    "including": '#include <kerneltui/kernel.h>\n#include "line.h"',
}


@pytest.mark.parametrize("name", RED)
def test_forbidden(name: str) -> None:
    rule, text = RED[name]
    found = DEFAULT_POLICY.check_source(f"int first;\n{text}\n")
    assert found and {f.rule for f in found} == {rule}
    assert all(f.level == "block" and f.line in (2, 3) and "\n" not in f.text for f in found)


@pytest.mark.parametrize("name", GREEN)
def test_allowed(name: str) -> None:
    assert DEFAULT_POLICY.check_source(f"int first;\n{GREEN[name]}\n") == ()


def test_lines_are_those_of_the_file() -> None:
    text = 'int a = 1; /* two\nlines */ \\\n\nconst char* s = R"(\n)";\nsetenv("A", "1", 1);\n'
    (finding,) = DEFAULT_POLICY.check_source(text)
    assert finding.line == 6


def test_only_the_kernels_own_part_of_a_preprocessed_text_counts() -> None:
    text = (
        '# 1 "/tmp/x/kernel.cu"\nint a;\n# 1 "/usr/include/cuda.h" 1 3\n'
        "int cuMulticastCreate(int);\nvoid setenv();\n"
        '# 7 "kernel.cu" 2\nint b;\nint c = cuMulticastCreate(1);\n'
    )
    (finding,) = DEFAULT_POLICY.check_preprocessed(text, "kernel.cu")
    assert (finding.rule, finding.line) == ("L01", 8)


def test_instructions_in_ptx() -> None:
    ptx = '\t.file 1 "multimem.st.cu"\n// multimem.st.f32\n\tmultimem.red.add.f32 [%rd1], %f1;\n'
    (finding,) = DEFAULT_POLICY.check_ptx(ptx)
    assert "multimem.red.add.f32" in finding.text
    legal = (
        "cp.async.bulk.shared::cluster.global.multicast::cluster [%r1], [%rd1], 16, [%r2], %rs1;"
    )
    assert DEFAULT_POLICY.check_ptx(legal) == ()


def test_the_environment_of_a_child() -> None:
    environment = DEFAULT_POLICY.environment
    assert environment == {
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    }


def test_without_files_the_default_holds(tmp_path: Path) -> None:
    assert load_policy(tmp_path, tmp_path / "none.toml") == DEFAULT_POLICY


def test_the_machine_may_allow_and_forbid(tmp_path: Path) -> None:
    file = tmp_path / "etc.toml"
    file.write_text(
        'version = 1\nallow = ["nvlink_multicast"]\n[forbid.gin]\nreason = "no network"\n'
        'identifiers = ["ncclGin*"]\n[environment]\nNCCL_DEBUG = "WARN"\n'
    )
    policy = load_policy(tmp_path, file)
    assert policy.check_source("cuMulticastCreate(&h, &p);") == ()
    (finding,) = policy.check_source("ncclGin gin(dc, 0);")
    assert finding.rule == "forbid.gin" and "no network" in finding.text
    assert policy.environment == {"NCCL_DEBUG": "WARN"}
    assert policy.digest != DEFAULT_POLICY.digest
    assert policy.files == (str(file),)


def test_the_user_may_only_forbid(tmp_path: Path) -> None:
    (tmp_path / "machine.toml").write_text('version = 1\nallow = ["nvlink_multicast"]\n')
    with pytest.raises(DefinitionError, match="forbids more"):
        load_policy(tmp_path, tmp_path / "none.toml")
    (tmp_path / "machine.toml").write_text(
        'version = 1\n[forbid.slow]\nreason = "no"\ninstructions = ["nanosleep"]\n'
    )
    policy = load_policy(tmp_path, tmp_path / "none.toml")
    assert policy.check_source('asm("nanosleep.u32 20;");')[0].rule == "forbid.slow"
    assert policy.check_source("setenv(a, b, 1);")


def test_locks_of_machine_and_user_add_up_and_change_no_build(tmp_path: Path) -> None:
    file = tmp_path / "etc.toml"
    file.write_text('version = 1\ndevice_lock = "/var/lock/gpu{gpu}.lock"\n')
    policy = load_policy(tmp_path, file)
    assert policy.device_locks == ("/var/lock/gpu{gpu}.lock",)
    (tmp_path / "machine.toml").write_text('version = 1\ndevice_lock = "/home/me/lock"\n')
    policy = load_policy(tmp_path, file)
    assert policy.device_locks == ("/var/lock/gpu{gpu}.lock", "/home/me/lock")
    assert policy.digest == DEFAULT_POLICY.digest


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("version = 2", "version"),
        ("allow = 3", "version"),
        ('version = 1\nallow = ["clocks"]', "clocks"),
        ("version = 1\ncolour = 3", "colour"),
        ("version = 1\n[forbid.x]\nidentifiers = []", "reason"),
        ('version = 1\n[environment]\nNCCL_NVLS_ENABLE = "1"', "NCCL_NVLS_ENABLE"),
        ('version = 1\ndevice_lock = "gpu.lock"', "no absolute path"),
        ("version = 1\ndevice_lock = true", "device_lock"),
        ("version =", "cannot be read"),
    ],
)
def test_a_wrong_file_names_the_place(text: str, match: str, tmp_path: Path) -> None:
    file = tmp_path / "machine-wide.toml"
    file.write_text(text)
    with pytest.raises(DefinitionError, match=match) as caught:
        load_policy(tmp_path, file)
    assert str(file) in str(caught.value)
