"""What the terminal shows of GPUs: the strip, the codegen tab, the machine code, the bench table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_engine import Paper
from fakes import Desk, drive, has, shown, until
from gpu_session import NOTES, READINGS, counted, on_gpus
from hypothesis import given
from hypothesis import strategies as st
from test_tui_layout import FOCUSED, SIZES, assert_tiles
from test_tui_snapshots import draw
from tui_record import record

from kerneltui.model.command import Profile, Progress, ReadMachineCode, ReadNotes
from kerneltui.model.reading import GpuReading, encode_readings
from kerneltui.model.state import fold
from kerneltui.tui.draw.chart import chart_lines, chart_of
from kerneltui.tui.draw.codegen import codegen_lines
from kerneltui.tui.draw.counters import counter_lines
from kerneltui.tui.draw.gpus import gpu_line, last_flop_per_clock
from kerneltui.tui.draw.tables import bench_table, machine_lines
from kerneltui.tui.layout import Panel, Zoom, plan_tuning
from kerneltui.tui.reports import MachineCode, Report
from kerneltui.tui.text import line_width, plain
from kerneltui.tui.view import Live
from kerneltui.tui.widgets.main import GPU_TABS, TABS

STATE = fold(on_gpus().events)
TAB = "right_square_bracket"


def desk(**options: Any) -> dict[str, Any]:
    return {"paper": Paper(on_gpus(), replay=bool(options.get("replay"))), **options}


def text_of(lines: Any) -> list[str]:
    return [plain(line) for line in lines]


# The strip


def strip(
    width: int, *readings: GpuReading, before: tuple[GpuReading, ...] = (), ranks: int = 2
) -> str:
    live = Live(readings=readings or READINGS, earlier_readings=before)
    line = gpu_line(replace(STATE, ranks=ranks), live, width)
    assert line_width(line) == width
    return plain(line)


def test_the_strip_has_everything_when_there_is_room() -> None:
    before = tuple(replace(r, at_ns=0, link_bytes=r.link_bytes - 171 * 10**9) for r in READINGS)
    text = strip(200, before=before)
    assert "GPU 0 1755 MHz 652 W 38.0/141 GiB link 171 GB/s 61 °C 97% busy power cap" in text
    assert "GPU 1 1980 MHz 598 W" in text
    assert text.rstrip().endswith("FLOP/clk/SM c0031")


def test_what_says_least_about_speed_goes_first() -> None:
    assert strip(80).startswith(" GPU 0 1755 MHz 652 W power cap │ GPU 1 1980 MHz 598 W ")
    assert "GiB" not in strip(80) and "FLOP/clk/SM" in strip(80)
    assert strip(60).startswith(" GPU 0 1755 MHz 652 W power cap │ GPU 1 1980 MHz 598 W")


def test_many_gpus_are_told_together() -> None:
    eight = [replace(READINGS[0], index=i, sm_clock_mhz=1700 + i) for i in range(8)]
    assert strip(80, *eight, ranks=8).split() == (
        ["8", "GPUs", "1700-1707", "MHz", "5219", "W", "8", "held", "down"]
    )


def test_gpus_without_a_rank_are_nobodys_business() -> None:
    assert "GPU 1" not in strip(120, ranks=1)


def test_what_the_driver_does_not_tell_is_left_out() -> None:
    assert strip(120, GpuReading(0, 1, sm_clock_mhz=1980)).startswith(" GPU 0 1980 MHz  ")
    assert "None" not in strip(120, GpuReading(0, 1))


@given(st.integers(20, 220))
def test_the_strip_fits_every_width(width: int) -> None:
    strip(width)


def test_a_session_without_gpus_has_no_operations_per_clock() -> None:
    assert last_flop_per_clock(fold(record().events)) is None
    found = last_flop_per_clock(STATE)
    assert found is not None and found[0] == "c0031"


def test_readings_of_the_second_before_are_kept_for_rates() -> None:
    def told(readings: tuple[GpuReading, ...]) -> Progress:
        return Progress("gpu", "", "", extra={"readings": encode_readings(readings)})

    later = tuple(replace(r, at_ns=r.at_ns + 1) for r in READINGS)
    live = Live().fold(told(READINGS)).fold(told(later))
    assert (live.earlier_readings, live.readings) == (READINGS, later)
    assert live.fold(told(later)) is live  # the engine has nothing newer
    assert live.fold(Progress("gpu", "", "", extra={"readings": "?"})) is live


@given(SIZES, st.sampled_from(list(Zoom)), FOCUSED)
def test_the_strip_takes_one_row_and_nothing_overlaps(
    size: tuple[int, int], zoom: Zoom, focused: Panel
) -> None:
    plan = plan_tuning(*size, zoom, focused, gpus=True)
    assert_tiles(plan, *size)
    assert focused in plan.panels
    assert (Panel.GPUS in plan.panels) == (size[1] >= 20)
    assert Panel.GPUS not in plan_tuning(*size, zoom, focused).panels


@drive(size=(120, 40), **desk())
async def test_the_strip_is_there_when_readings_come(desk: Desk, pilot: Any) -> None:
    await until(pilot, lambda: shown(desk)[1].startswith(" GPU 0 1755 MHz 652 W"))
    newer = replace(READINGS[0], sm_clock_mhz=1234, at_ns=3 * 10**9)
    extra = {"readings": encode_readings([newer])}
    desk.link.push(desk.paper.progress(Progress("gpu", "", "", extra=extra)))
    await until(pilot, lambda: has(desk, "GPU 0 1234 MHz"))


@drive(size=(120, 40))
async def test_a_session_on_processors_has_neither_strip_nor_tabs(desk: Desk, pilot: Any) -> None:
    assert not has(desk, "GPU") and not has(desk, "Codegen")
    await pilot.press("M")
    await until(
        pilot,
        lambda: has(desk, "M machine code: only kernels for GPUs have machine code to compare"),
    )


# The codegen tab


def test_the_table_has_parent_and_change() -> None:
    report = Report("c0028", "c0025", NOTES["c0028"]["codegen"], NOTES["c0025"]["codegen"])
    lines = text_of(codegen_lines(report, 100))
    assert lines[0] == " nvcc 13.0.88 for sm_90a"
    assert lines[1].startswith(" WARNING  Potential Performance Loss: wgmma.mma_async")
    rows = [line.split() for line in lines]
    assert ["registers", "168", "168", "="] in rows
    assert ["spill", "stores", "64", "0", "+64"] in rows
    assert ["HGMMA", "32", "24", "+8"] in rows
    assert ["LDL", "16", "0", "+16"] in rows
    assert ["instructions", "2391", "2022", "+369"] in rows
    fits = "   384 threads, at most 1 CTA/SM by registers and static smem, 19% of warps"
    assert fits in lines
    assert " gate_kernel   new" in lines and " wait_kernel   gone" in lines


def test_the_codegen_tab_says_how_launches_fall_onto_the_device() -> None:
    launch = {
        "name": "gemm_kernel", "grid": [256, 1, 1], "threads": 384, "dynamic": 200_704, "ctas": 1,
        "limiter": "registers", "waves": 2, "tail": 124, "places": 132, "count": 1,
    }  # fmt: skip
    launches = [{"shape": "4096x1024x256", "kernels": [launch, {"name": 3}]}, "nothing"]
    code = {**NOTES["c0028"]["codegen"], "launches": launches, "unread": "8192: it waits"}
    for width in (60, 110):
        lines = text_of(codegen_lines(Report("c0028", "", code), width))
        assert all(
            len(line) <= width for line in lines[lines.index(" Launches on 4096x1024x256") :][:5]
        )
        text = " ".join(" ".join(lines).split())
        assert (
            "Launches on 4096x1024x256 gemm_kernel: 256 CTAs of 384 threads, 200704 bytes of dynamic "
            "shared memory, 1 on an SM by registers, 2 waves, the last with 124 of 132" in text
        )
        assert "launches not known: 8192: it waits" in text


def test_more_spills_are_bad_and_fewer_are_good() -> None:
    new, old = NOTES["c0028"]["codegen"], NOTES["c0025"]["codegen"]

    def style(report: Report) -> str:
        line = next(x for x in codegen_lines(report, 90) if "spill stores" in plain(x))
        return line[-1][1]

    assert style(Report("c0028", "c0025", new, old)) == "bad"
    assert style(Report("c0025", "c0028", old, new)) == "good"


def test_without_a_report_of_the_parent_nothing_is_compared() -> None:
    lines = text_of(codegen_lines(Report("c0028", "", NOTES["c0028"]["codegen"]), 100))
    assert not [line for line in lines if "new" in line or "change" in line]
    assert ["registers", "168"] in [line.split() for line in lines]


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (Report("c0001"), "c0001 has no report of the compiler"),
        (Report("c0001", error="the engine is gone"), "the engine is gone"),
        (Report("c0031", code=NOTES["c0031"]["codegen"]), "gone from the cache"),
        (Report("c1", code={"arch": "sm_90a", "kernels": []}), "it calls libraries"),
        (
            Report("c1", code={"kernels": "none", "findings": [3], "more": None, "a": 1}),
            "M compares",
        ),
        (Report("c1", code={"kernels": [{"metrics": 3}]}), "no launch bounds"),
    ],
)
def test_any_note_can_be_shown(report: Report, text: str) -> None:
    assert text in "\n".join(text_of(codegen_lines(report, 100)))


def test_without_a_report_of_its_own_no_kernel_is_called_gone() -> None:
    report = Report("c0031", "c0025", NOTES["c0031"]["codegen"], NOTES["c0025"]["codegen"])
    assert "gone from the cache" in text_of(codegen_lines(report, 100))[0]
    assert not [line for line in text_of(codegen_lines(report, 100)) if line.endswith("   gone")]


def test_counts_of_one_without_disassembler_are_not_compared() -> None:
    bare = {"kernels": [{"name": "gemm_kernel<1>", "metrics": {"registers": 100}}]}
    lines = text_of(codegen_lines(Report("c2", "c1", NOTES["c0025"]["codegen"], bare), 100))
    rows = [line.split() for line in lines]
    assert ["registers", "168", "100", "+68"] in rows
    assert ["HGMMA", "24"] in rows


def test_the_difference_of_machine_code_stands_below() -> None:
    machine = MachineCode(("## f", "@@ -1 +1 @@", "-  A;", "+  B;"), ("g", "h"))
    report = Report("c2", "c1", NOTES["c0025"]["codegen"], machine=machine)
    lines = text_of(codegen_lines(report, 100))
    assert lines[-5:] == [
        " Machine code   the same in g, h",
        " f",
        " @@ -1 +1 @@",
        " -  A;",
        " +  B;",
    ]
    waiting = replace(report, machine=MachineCode(text="comparing the machine code…"))
    assert text_of(codegen_lines(waiting, 100))[-1] == " comparing the machine code…"


@drive(size=(120, 40), **desk())
async def test_the_tab_loads_the_notes_of_candidate_and_parent(desk: Desk, pilot: Any) -> None:
    screen: Any = desk.app.base
    screen.candidates.select("c0028")
    await until(pilot, lambda: screen.loaded and screen.loaded.candidate == "c0028")
    await pilot.press("0", *[TAB] * len(TABS))
    await until(pilot, lambda: has(desk, "spill stores           64        0      +64"))
    asked = [c.candidate for c in desk.paper.commands if isinstance(c, ReadNotes)]
    assert asked == ["c0028", "c0025"]
    # going away and back asks nobody again
    await pilot.press(TAB, "left_square_bracket")
    assert len([c for c in desk.paper.commands if isinstance(c, ReadNotes)]) == 2
    await pilot.press("M")
    await until(pilot, lambda: has(desk, "+    STL.64 [R1+0x8], R152;"))
    assert [c for c in desk.paper.commands if isinstance(c, ReadMachineCode)] == [
        ReadMachineCode("c0028")
    ]


@drive(size=(80, 24), **desk())
async def test_machine_code_that_cannot_be_had_says_why(desk: Desk, pilot: Any) -> None:
    screen: Any = desk.app.base
    screen.candidates.select("c0025")
    await until(pilot, lambda: screen.loaded and screen.loaded.candidate == "c0025")
    await pilot.press("M")
    await until(pilot, lambda: has(desk, "no machine code here: no nvcc"))


@drive(size=(120, 40), **desk(replay=True))
async def test_a_replay_shows_the_report_too(desk: Desk, pilot: Any) -> None:
    screen: Any = desk.app.base
    step = next(
        number
        for number, event in enumerate(screen.timeline.events, 1)
        if getattr(event, "id", "") == "c0028"
    )
    screen.go(step)
    await pilot.press("0", *[TAB] * len(TABS))
    await until(pilot, lambda: has(desk, "HGMMA") or has(desk, "instructions         2391"))
    assert not has(desk, "652 W")


# The bench table


def test_the_bench_table_leaves_out_what_no_sample_was_long_enough_for() -> None:
    candidate = STATE.candidates["c0028"]
    measurement = candidate.measurement
    assert measurement is not None
    parts = [
        replace(p, gpu=p.gpu and replace(p.gpu, power_w=None, energy_j=None, counted=False))
        for p in measurement.shapes
    ]
    short = replace(candidate, measurement=replace(measurement, shapes=tuple(parts)))
    lines = text_of(bench_table(STATE, short, 110))
    (row,) = [line for line in lines if "1980" in line][:1]
    assert row.split()[1:4] == ["1980", "-", "-"]
    assert any("driver's average of power" in line for line in lines)
    assert not any("~" in line for line in lines)


def test_the_bench_table_says_what_the_gpus_did() -> None:
    lines = text_of(bench_table(STATE, STATE.candidates["c0028"], 110))
    head = next(line for line in lines if "FLOP/clk/SM" in line)
    assert head.split()[-6:] == ["W", "mJ/call", "FLOP/clk/SM", "held", "by", "(rounds)"]
    rows = [line for line in lines if "1755" in line]
    assert len(rows) == 1 and "power 9/11, BEST 9" in rows[0]
    assert any("~" in line and "nothing" in line for line in lines)
    assert any(line.startswith(" ! 4096x1024x256: a power limit held") for line in lines)


@pytest.mark.parametrize("width", [60, 110])
def test_the_bench_table_says_whose_calls_were_graphs(width: int) -> None:
    candidate = STATE.candidates["c0028"]
    measurement = candidate.measurement
    assert measurement is not None
    assert not any("graph" in line for line in text_of(bench_table(STATE, candidate, width)))
    parts = tuple(replace(part, graph=place != 1) for place, part in enumerate(measurement.shapes))
    short = replace(candidate, measurement=replace(measurement, shapes=parts))
    lines = text_of(bench_table(STATE, short, width))
    first = next(place for place, line in enumerate(lines) if "CUDA graph" in line)
    told = " ".join(line.strip() for line in lines[first : first + 3])
    assert all((part.shape in told) is part.graph for part in parts)
    assert max(map(len, lines[first : first + 3])) <= width


def test_a_session_without_gpus_has_no_such_table() -> None:
    state = fold(record().events)
    lines = text_of(bench_table(state, state.candidates["c0028"], 110))
    assert not [line for line in lines if "FLOP" in line]


def test_the_machine_panel_names_the_gpus() -> None:
    lines = text_of(machine_lines(STATE, 90, 8))
    assert lines[0] == " machine Xeon 8481C"
    assert lines[1] == " gpus    2x NVIDIA H200, 143771 MiB, sm_90a, driver 580.65.06"


def test_the_chart_has_a_line_for_what_can_be_reached() -> None:
    chart = chart_of(STATE, STATE.candidates["c0028"])
    assert chart.bound is not None and chart.reachable == pytest.approx(chart.bound / 1.06)
    assert "╎ reachable 1.756x  ┊ bound 1.861x" in chart.title_for(100)
    assert "reachable" not in chart.title_for(40) and "bound" in chart.title_for(40)
    rows = text_of(chart_lines(chart, 100, 6))
    assert rows[0].index("╎") < rows[0].index("┊")
    assert chart_of(fold(record().events), None).reachable is None


# The counters tab


def test_counters_stand_beside_those_of_the_parent() -> None:
    report = Report("c2", "c1", counters=counted(742.1, 71.0), parent_counters=counted(750.0, 71.0))
    lines = text_of(counter_lines(report, 90))
    assert lines[0] == " ncu on 256x512x512"
    assert "nothing of the link is in here" in " ".join(lines)
    rows = [line.split() for line in lines]
    assert ["time", "742.1", "us", "750", "-7.9"] in rows
    assert ["L2", "hit", "71", "%", "71", "="] in rows
    assert " gemm_kernel<Config<256, 4, 4> >   2 launches" in lines
    tail = "1 full wave and a tail of 50%: 75.0% of the places are taken"
    assert f"   {tail}" in lines


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (Report("c2"), "c2 was not profiled; P counts it while no evaluation runs"),
        (Report("c2", error="the engine is gone"), "the engine is gone"),
        (Report("c2", counters=counted(1.0, 1.0, 3.0)), "3 full waves, no tail"),
        (Report("c2", counters={"vendor": True}), "kernels of the vendor's library"),
        (Report("c2", counters={"kernels": [{"counters": [["a"], 3, ["x", "n/a", "%"]]}]}), "n/a"),
        (Report("c2", counters={"kernels": "none", "shape": 3}), "ncu on 3"),
    ],
)
def test_any_counters_can_be_shown(report: Report, text: str) -> None:
    assert text in "\n".join(text_of(counter_lines(report, 100)))


@drive(size=(120, 40), **desk())
async def test_the_profiler_is_asked_and_its_counters_are_shown(desk: Desk, pilot: Any) -> None:
    screen: Any = desk.app.base
    screen.candidates.select("c0028")
    await until(pilot, lambda: screen.loaded and screen.loaded.candidate == "c0028")
    await pilot.press("0", "left_square_bracket")
    await until(pilot, lambda: has(desk, "c0028 was not profiled; P counts it"))
    desk.paper.session.notes["c0028"] = {**NOTES["c0028"], "counters": counted(742.1, 71.0)}
    await pilot.press("1", "P")
    await until(pilot, lambda: has(desk, "L2 hit"))
    assert desk.decisions == [Profile("c0028")]
    assert has(desk, "profile c0028: done, see Counters")


@drive(size=(120, 40), **desk())
async def test_a_profile_that_cannot_be_made_says_why(desk: Desk, pilot: Any) -> None:
    screen: Any = desk.app.base
    screen.candidates.select("c0007")  # it did not compile
    await pilot.press("P")
    await until(
        pilot,
        lambda: has(
            desk, "P profile: c0007 was not verified, and a profile runs without the sandbox"
        ),
    )
    desk.paper.refuse = "no ncu: install Nsight Compute (part of the CUDA toolkit)"
    screen.candidates.select("c0028")
    await pilot.press("P")
    await until(pilot, lambda: has(desk, "profile c0028: no ncu: install Nsight Compute"))


@drive(size=(120, 40))
async def test_processors_have_no_counters(desk: Desk, pilot: Any) -> None:
    await pilot.press("P")
    await until(
        pilot, lambda: has(desk, "P profile: counters are those of a GPU; this target has none")
    )


# Pictures


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("tab", ["Bench", "Codegen", "Counters"])
def test_tabs(snap_compare: Any, size: tuple[int, int], tab: str) -> None:
    session = on_gpus()
    session.notes["c0028"] = {**NOTES["c0028"], "counters": counted(742.1, 71.0)}
    draw(
        snap_compare,
        size,
        "0",
        *[TAB] * (*TABS, *GPU_TABS).index(tab),
        select="c0028",
        ready=tab,
        paper=Paper(session),
    )
