"""Listings of both disassemblers (real ones, of nvcc 13.0 for sm_90a), counts, and the diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerneltui.targets.cuda.sass import SassFunction, count_instructions, parse_sass, sass_diff

GOLDEN = Path(__file__).parents[1] / "golden" / "cuda"


def listing(name: str) -> SassFunction:
    (function,) = parse_sass((GOLDEN / f"{name}.sass").read_text())
    return function


def function(*lines: str) -> SassFunction:
    """One made by hand, in the form of nvdisasm."""
    rows = []
    address = 0
    for line in lines:
        if line.startswith(".L"):
            rows.append(f"{line}:")
        else:
            rows.append(f"        /*{address:04x}*/                   {line} ;")
            address += 16
    (made,) = parse_sass("\n".join([".text.k:", *rows]))
    return made


def test_both_disassemblers_give_the_same() -> None:
    assert listing("nvdisasm") == listing("cuobjdump")


def test_no_address_and_no_encoding_is_left() -> None:
    text = "\n".join(listing("cuobjdump").lines)
    assert "/*" not in text and "0x00" not in text
    assert "BRA .L" in text and "\n.L1:" in text
    assert not text.endswith("NOP;")


def test_counts_of_a_real_listing() -> None:
    counts = count_instructions(listing("nvdisasm"))
    assert counts["LDG.128"] == counts["STG.128"] == 1
    assert counts["STS.128"] == counts["LDS.128"] == counts["BAR"] == 1
    assert counts["MEMBAR"] == 1
    assert "LDL" not in counts
    assert counts["all"] > 20


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4], R24, gsb0", "HGMMA"),
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", "HMMA"),
        ("@P0 UTMALDG.2D.MULTICAST [UR8], [UR4], UR6", "UTMALDG"),
        ("@!UP0 UTMASTG.2D [UR8], [UR4]", "UTMASTG"),
        ("UBLKCP.G.S [UR6], [UR8], UR11", "UBLKCP"),
        ("STL.64 [R1+0x8], R2", "STL"),
        ("LDG.E.U8.CONSTANT R3, desc[UR12][R2.64]", "LDG.8"),
        ("LDG.E.64.STRONG.SYS R4, desc[UR12][R2.64]", "LDG.64"),
        ("STG.E desc[UR4][R2.64], R5", "STG.32"),
        ("BAR.SYNC.DEFER_BLOCKING 0x3, 0x80", "BAR"),
    ],
)
def test_what_is_counted(line: str, name: str) -> None:
    assert count_instructions(function(line)) == {name: 1, "all": 1}


def test_a_moved_loop_is_no_difference() -> None:
    before = function("S2R R0, SR_TID.X", ".L_x_3", "IADD3 R0, R0, 1", "@P0 BRA `(.L_x_3)", "EXIT")
    after = function("S2R R0, SR_TID.X", ".L_x_9", "IADD3 R0, R0, 1", "@P0 BRA `(.L_x_9)", "EXIT")
    assert sass_diff(before, after) == []


def test_one_more_label_is_one_difference() -> None:
    loop = (".L_x_3", "IADD3 R0, R0, 1", "@P0 BRA `(.L_x_3)", "EXIT")
    before = function("S2R R0, SR_TID.X", *loop)
    after = function("S2R R0, SR_TID.X", ".L_x_1", "MEMBAR.SC.SYS", "@P1 BRA `(.L_x_1)", *loop)
    diff = sass_diff(before, after)
    changed = [line for line in diff if line[0] in "+-"]
    assert changed == ["+.L1:", "+    MEMBAR.SC.SYS;", "+    @P1 BRA .L1;"]
    assert diff[0].startswith("@@ -")


def test_nothing_is_made_of_nothing() -> None:
    assert parse_sass("") == ()
    assert parse_sass("nvdisasm fatal : Unknown option") == ()
