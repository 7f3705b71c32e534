"""The difference of a candidate's machine code to its parent's, made when somebody asks for it.

Machine code is large and follows from the source, so a session does not keep it: it comes from the build
cache of the engine that measured, or, in a replay, from the compiler of the machine that looks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kerneltui.config import cache_folder, config_folder
from kerneltui.engine.errors import Refused
from kerneltui.engine.notes import note_part
from kerneltui.model.errors import UserError
from kerneltui.model.kernel import Language, parse_kernel
from kerneltui.model.workload import DTYPE_BYTES

if TYPE_CHECKING:
    from kerneltui.engine.recorder import Recorder
    from kerneltui.targets.cuda.sass import SassFunction

__all__ = ["CodeQuestion", "difference", "question"]

MOST_LINES = 6_000
_ARCH = re.compile(r"sm_\d+[af]?")


@dataclass(frozen=True, slots=True)
class CodeQuestion:
    """Two sources to compare, and what to compile them for; no parent is an empty text.

    `element` is the dtype that they were built for; nothing where a session does not say so.
    """

    file: str
    arch: str
    parent: str
    parent_source: str
    source: str
    element: str = ""


def question(recorder: Recorder, candidate: str) -> CodeQuestion:
    """Gathers what is compared; from the thread that owns the session.

    Raises:
        Refused: There is no such candidate, or nothing was compiled for a GPU.
    """
    known = recorder.state.candidates.get(candidate)
    if known is None:
        raise Refused(f"there is no candidate {candidate}")
    file = recorder.kernel_path.rpartition("/")[2]
    if not file.endswith(".cu"):
        raise Refused(f"{file} has no machine code of its own to compare")
    arch = note_part(recorder, candidate, "codegen").get("arch")
    if not isinstance(arch, str):
        found = _ARCH.search(recorder.state.environment.get("gpu 0", ""))
        if found is None:
            raise Refused(f"{candidate} has no report of the compiler, so its GPU is not known")
        arch = found[0]
    parent = known.parents[0] if known.parents else ""
    element = note_part(recorder, candidate, "build").get("element")
    return CodeQuestion(
        file,
        arch,
        parent,
        recorder.source(parent) if parent else "",
        recorder.source(candidate),
        element if isinstance(element, str) and element in DTYPE_BYTES else "",
    )


def difference(asked: CodeQuestion) -> dict[str, Any]:
    """Compiles both, unless they are in the cache, and compares; can take half a minute.

    From any thread.

    Returns:
        `lines` of a diff with a heading for each function, and `same`: names of those without a
        difference.

    Raises:
        Refused: It cannot be made on this machine; the text says why.
    """
    # The compiler's side is needed by this question alone.
    from kerneltui.evaluation.kernel_text import element_define, kernel_text
    from kerneltui.targets.cuda.code_record import short_name
    from kerneltui.targets.cuda.codegen import demangle
    from kerneltui.targets.cuda.policy import NO_POLICY, PolicyRefusal, load_policy
    from kerneltui.targets.cuda.sass import parse_sass, sass_diff
    from kerneltui.targets.cuda.toolchain import CudaToolchain

    builds = cache_folder() / "builds"

    def functions(toolchain: CudaToolchain, source: str) -> dict[str, SassFunction]:
        text = kernel_text(parse_kernel(source, asked.file))
        try:
            build = toolchain.compile(text, defines=defines)
        except PolicyRefusal:  # a recording may hold what is forbidden here; nothing runs it
            toolchain = CudaToolchain(builds, arch=asked.arch, policy=NO_POLICY)
            build = toolchain.compile(text, defines=defines)
        found: dict[str, SassFunction] = {}
        for part in parse_sass(toolchain.sass(build)):
            # A template with other arguments is the one of the same name in the same place.
            stem = short_name(demangle(part.name)).partition("<")[0]
            number = sum(1 for known in found if known.partition(" #")[0] == stem)
            found[f"{stem} #{number + 1}" if number else stem] = part
        return found

    defines = element_define(asked.element) if asked.element else None
    if Language.of(asked.file) is Language.PYTHON:
        raise Refused("no machine code here: a Python kernel is compiled by its ranks, in setup")
    try:
        policy = load_policy(config_folder())
        toolchain = CudaToolchain(builds, arch=asked.arch, policy=policy)
        after = functions(toolchain, asked.source)
        before = functions(toolchain, asked.parent_source) if asked.parent else {}
    except UserError as error:
        raise Refused(f"no machine code here: {error}") from error
    lines: list[str] = []
    same: list[str] = []
    for name in dict.fromkeys((*after, *before)):
        if name not in before:
            lines.append(f"## {name}: new, {len(after[name].lines)} lines")
        elif name not in after:
            lines.append(f"## {name}: gone")
        else:
            with_headings = sass_diff(before[name], after[name])
            if not with_headings:
                same.append(name)
                continue
            lines += [f"## {name}", *with_headings]
    if len(lines) > MOST_LINES:
        lines = [*lines[:MOST_LINES], f"## {len(lines) - MOST_LINES} more lines are left out"]
    return {"parent": asked.parent, "lines": lines, "same": same}
