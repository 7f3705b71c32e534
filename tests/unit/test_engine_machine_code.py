"""The difference of machine code, with a compiler that is played by a class; and the strip of GPUs."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kerneltui.engine import machine_code
from kerneltui.engine.commands import answer_machine_code
from kerneltui.engine.errors import Refused
from kerneltui.engine.gpu_strip import GpuStrip
from kerneltui.engine.machine_code import CodeQuestion, difference, question
from kerneltui.engine.notes import read_note
from kerneltui.engine.recorder import Recorder
from kerneltui.model.command import Progress, ReadMachineCode
from kerneltui.model.reading import GpuReading, decode_readings
from kerneltui.targets.cuda import toolchain
from kerneltui.targets.cuda.policy import MachinePolicy, PolicyRefusal
from kerneltui.targets.errors import CompileFailure

NOTE = b'{"build": {"element": "float16"}, "codegen": {"arch": "sm_90a"}, "rounds": 11}'


def listing(**functions: list[str]) -> str:
    rows: list[str] = []
    for name, lines in functions.items():
        rows.append(f".text.{name}:")
        rows += [
            f"        /*{16 * i:04x}*/                   {line} ;" for i, line in enumerate(lines)
        ]
    return "\n".join(rows)


class Nvcc:
    """Gives each source its listing."""

    made: dict[str, str]
    arch = ""
    defines: object = None

    def __init__(self, cache: Path, *, arch: str, policy: MachinePolicy) -> None:
        type(self).arch = arch
        self.policy = policy

    def compile(self, text: str, *, defines: object) -> str:
        type(self).defines = defines
        found = self.policy.check_source(text)
        if found:
            raise PolicyRefusal(found)
        if "broken" in text:
            raise CompileFailure("kernel.cu(1): error: broken")
        return text

    def sass(self, build: str) -> str:
        return next(sass for mark, sass in self.made.items() if mark in build)


@pytest.fixture
def nvcc(monkeypatch: pytest.MonkeyPatch) -> type[Nvcc]:
    monkeypatch.setattr(toolchain, "CudaToolchain", Nvcc)
    Nvcc.made = {
        "old": listing(_Z4growv=["MOV R1, R2", "EXIT"], _Z4samev=["EXIT"], _Z4gonev=["EXIT"]),
        "new": listing(
            _Z4growv=["MOV R1, R3", "EXIT"], _Z4samev=["EXIT"], _Z5freshv=["NOP", "EXIT"]
        ),
    }
    return Nvcc


def asked(source: str = "new", parent: str = "old") -> CodeQuestion:
    return CodeQuestion("kernel.cu", "sm_90a", "c0001" if parent else "", parent, source)


def test_functions_are_compared_by_their_names(nvcc: type[Nvcc]) -> None:
    found = difference(asked())
    assert found["same"] == ["same"]
    assert found["lines"] == [
        "## grow",
        "@@ -1,2 +1,2 @@",
        "-    MOV R1, R2;",
        "+    MOV R1, R3;",
        "     EXIT;",
        "## fresh: new, 2 lines",
        "## gone: gone",
    ]
    assert nvcc.arch == "sm_90a"


def test_templates_are_told_apart_by_their_place(nvcc: type[Nvcc]) -> None:
    nvcc.made = {
        "old": listing(_Z1fILi3EEvv=["EXIT"], _Z1fILi4EEvv=["NOP", "EXIT"]),
        "new": listing(_Z1fILi3EEvv=["EXIT"], _Z1fILi5EEvv=["MOV R1, R2", "EXIT"]),
    }
    found = difference(asked())
    assert found["same"] == ["f"]
    assert found["lines"][0] == "## f #2"


def test_without_a_parent_everything_is_new(nvcc: type[Nvcc]) -> None:
    assert difference(asked(parent=""))["lines"][0] == "## grow: new, 2 lines"


def test_what_is_forbidden_here_can_be_looked_at(nvcc: type[Nvcc]) -> None:
    """A recording may be older than a rule, and nothing of it is run."""
    found = difference(asked("void *new_one = dlopen(text, 2);"))
    assert found["same"] == ["same"]


def test_what_does_not_compile_is_refused_with_the_reason(nvcc: type[Nvcc]) -> None:
    with pytest.raises(Refused, match=r"no machine code here: .*error: broken"):
        difference(asked("broken"))


def test_a_long_difference_ends_somewhere(
    nvcc: type[Nvcc], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_code, "MOST_LINES", 3)
    lines = difference(asked())["lines"]
    assert len(lines) == 4 and lines[-1] == "## 4 more lines are left out"


def recorder(
    note: bytes | None = NOTE,
    path: str = "kernels/gemm/kernel.cu",
    parents: tuple[str, ...] = (),
    gpu: str = "",
) -> Recorder:
    known = SimpleNamespace(sha="5d20", parents=parents)
    made = SimpleNamespace(
        state=SimpleNamespace(
            candidates={"c0001": known, "c0002": known}, environment={"gpu 0": gpu}
        ),
        session=SimpleNamespace(read_note=lambda sha: note),
        kernel_path=path,
        source=lambda candidate: f"the kernel of {candidate}",
    )
    return cast(Recorder, made)


def test_the_question_has_both_sources_and_the_gpu_of_the_note() -> None:
    found = question(recorder(parents=("c0001",)), "c0002")
    assert found == CodeQuestion(
        "kernel.cu", "sm_90a", "c0001", "the kernel of c0001", "the kernel of c0002", "float16"
    )
    assert question(recorder(), "c0002").parent == ""


@pytest.mark.parametrize("build", ["{}", '{"element": "float17"}', '{"element": 16}', "[]"])
def test_a_note_that_names_no_element_type_gives_none(build: str) -> None:
    note = f'{{"build": {build}, "codegen": {{"arch": "sm_90a"}}}}'.encode()
    assert question(recorder(note=note), "c0002").element == ""


@pytest.mark.parametrize(
    ("element", "defines"), [("", None), ("float16", {"KT_ELEMENT": "KT_ELEMENT_FLOAT16"})]
)
def test_both_are_built_for_the_element_type_of_the_session(
    nvcc: type[Nvcc], element: str, defines: object
) -> None:
    difference(CodeQuestion("kernel.cu", "sm_90a", "c0001", "old", "new", element))
    assert nvcc.defines == defines


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (recorder(note=None), "has no report"),
        (recorder(note=b"seen by me"), "has no report"),
        (recorder(note=b'{"codegen": {"missing": "no nvdisasm"}}'), "has no report"),
        (recorder(path="kernels/gemm/kernel.py"), r"kernel\.py has no machine code"),
    ],
)
def test_what_cannot_be_asked_is_refused(made: Recorder, why: str) -> None:
    with pytest.raises(Refused, match=why):
        question(made, "c0001")


def test_a_session_without_reports_still_knows_its_gpu() -> None:
    made = recorder(note=None, gpu="NVIDIA H200, 143771 MiB, sm_90a")
    assert question(made, "c0001").arch == "sm_90a"


def test_nobody_knows_the_code_of_a_candidate_that_is_not_there() -> None:
    with pytest.raises(Refused, match="there is no candidate c0009"):
        question(recorder(), "c0009")


def test_a_note_that_is_no_object_is_no_note() -> None:
    assert read_note(recorder(note=b"[1, 2]"), "c0001") == {}
    assert read_note(recorder(), "c0001")["rounds"] == 11


def answer(made: Recorder) -> tuple[bool, Any]:
    answers: list[tuple[bool, Any]] = []
    there = threading.Event()

    def reply(ok: bool, data: Any) -> None:
        answers.append((ok, data))
        there.set()

    answer_machine_code(made, ReadMachineCode("c0002"), reply)
    assert there.wait(20)
    return answers[0]


def test_an_answer_always_comes(nvcc: type[Nvcc], monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(recorder(note=None)) == (
        False,
        "c0002 has no report of the compiler, so its GPU is not known",
    )
    nvcc.made = {"kernel of c0002": listing(_Z1fv=["EXIT"])}
    ok, data = answer(recorder())
    assert ok and data["lines"] == ["## f: new, 1 lines"]
    nvcc.made = {}
    ok, text = answer(recorder())
    assert not ok and "StopIteration" in text


def test_the_strip_speaks_once_a_second_and_only_to_somebody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("kerneltui.engine.gpu_strip.time.monotonic", lambda: now[0])
    told: list[Progress] = []
    looking = [0]
    gpus = [(GpuReading(0, 1, sm_clock_mhz=1980),)]
    strip = GpuStrip(lambda oldest: gpus[0], told.append, lambda: looking[0])
    strip.tell()
    assert not told
    looking[0] = 1
    strip.tell()
    strip.tell()
    assert len(told) == 1
    assert told[0].kind == "gpu" and decode_readings(told[0].extra["readings"]) == gpus[0]
    now[0] += 1.0
    strip.tell()
    assert len(told) == 2
    gpus[0] = ()  # a target without GPUs has nothing to tell
    now[0] += 1.0
    strip.tell()
    assert len(told) == 2


def test_a_python_kernel_has_no_machine_code_here(nvcc: type[Nvcc]) -> None:
    with pytest.raises(Refused, match="a Python kernel is compiled by its ranks"):
        difference(CodeQuestion("kernel.py", "sm_90a", "c0001", "old", "new"))
