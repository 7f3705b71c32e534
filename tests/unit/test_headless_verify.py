"""What `kerneltui verify` says of the compiler's work."""

from __future__ import annotations

from typing import Any

from kerneltui.headless.verify import code_lines, mutants_line


def kernel(name: str, ctas: int | None, **metrics: int) -> dict[str, Any]:
    return {"name": name, "ctas": ctas, "metrics": {"registers": 168, **metrics}}


def test_a_line_for_each_kernel_behind_what_costs_speed() -> None:
    record = {
        "kernels": [
            kernel("gemm", 1, all=2022, **{"spill stores": 8, "spill loads": 4}),
            kernel("wait", None),
        ],
        "findings": [{"loud": True, "line": 9, "text": "wgmma serialized"}],
        "missing": "",
    }
    assert code_lines(record) == [
        "WARNING the compiler: wgmma serialized (line 9)",
        "gemm: 168 registers, 12 bytes spilled, at most 1 CTAs on an SM without dynamic "
        "shared memory, 2022 instructions",
        "wait: 168 registers, no spills",
    ]


def test_what_is_missing_is_said() -> None:
    assert code_lines({"missing": "no nvdisasm"}) == ["no nvdisasm"]
    assert code_lines(None) == []


def test_wrong_answers_are_named_once_for_all_shapes():
    mutants = ["zeros, 8x8x8", "an eighth, scaled by 8, 8x8x8", "zeros, 9x9x9 P3"]
    assert mutants_line(mutants) == (
        "3 wrong answers refused, on 8x8x8 and 9x9x9 P3: zeros; an eighth, scaled by 8"
    )


def test_launches_are_said_shape_by_shape_or_why_they_are_not_known() -> None:
    launch = {"name": "gemm", "grid": [128, 1, 1], "threads": 384, "ctas": 1, "cluster": 2}
    record = {
        "launches": [{"shape": "a", "kernels": [launch], "others": {"memsets": 1}}],
        "unread": "b: it waits for the device",
    }
    assert code_lines(record) == [
        "launches on a:",
        "  gemm: 128 CTAs of 384 threads in clusters of 2, 1 on an SM",
        "  beside them 1 memsets",
        "launches not known: b: it waits for the device",
    ]
