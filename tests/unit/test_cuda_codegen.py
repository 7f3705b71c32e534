"""Reading the compiler's report: what ptxas printed (of nvcc 13.0, shortened) and what PTX says."""

# ruff: noqa: E501 - lines of the compiler

from __future__ import annotations

from dataclasses import replace

import pytest

from kerneltui.model.record import from_plain, to_plain
from kerneltui.targets.cuda.code_record import report_record, short_name
from kerneltui.targets.cuda.codegen import (
    CodegenReport,
    compare_reports,
    demangle,
    has_kernels,
    make_report,
    ptx_lines,
)

LOG = """\
kernel.cu(17): warning #177-D: variable "x" was declared but never referenced
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : (C7519) warpgroup.arrive is injected in around line 9 by compiler to allow use of registers in GMMA in function '_Z6serialPfmmi'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma instructions defining accumulator registers of a wgmma between start and end of the pipeline stage in the function '_Z6serialPfmmi'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z6serialPfmmi' for 'sm_90a'
ptxas info    : Function properties for _Z6serialPfmmi
    352 bytes stack frame, 816 bytes spill stores, 664 bytes spill loads
ptxas info    : Used 30 registers, used 2 barriers, 352 bytes cumulative stack size, 2048 bytes smem
ptxas info    : Function properties for _Z6calledv
    8 bytes stack frame, 9 bytes spill stores, 9 bytes spill loads
ptxas info    : Compile time = 27.085 ms
ptxas info    : Compiling entry function '_Z4tmplILi3EEvPf' for 'sm_90a'
ptxas info    : Function properties for _Z4tmplILi3EEvPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, 400 bytes cmem[0]
"""
PTX = """\
.visible .entry _Z6serialPfmmi(
)
.maxntid 384, 1, 1
.minnctapersm 1
{
	.loc	2 99 3
	.loc	1 10 3
	// begin inline asm
	wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;
}
.visible .entry _Z4tmplILi3EEvPf(
)
{
	.loc	1 20 1
	setmaxnreg.dec.sync.aligned.u32 40;
}
	.file	1 "/tmp/kernel.cu"
	.file	2 "/usr/include/other.h"
"""


def report(log: str = LOG, sass: str = "", missing: str = "no nvdisasm") -> CodegenReport:
    return make_report(log, PTX, sass, arch="sm_90a", compiler="13.0.88", missing=missing)


def test_resources_of_each_kernel() -> None:
    serial, template = report().kernels
    assert serial.name == "serial(float*, unsigned long, unsigned long, int)"
    assert serial.metrics() == {
        "registers": 30,
        "spill stores": 816,
        "spill loads": 664,
        "stack": 352,
        "static smem": 2048,
        "barriers": 2,
    }
    assert (serial.max_threads, serial.min_ctas) == (384, 1)
    assert (template.registers, template.shared, template.max_threads) == (12, 0, 0)


def test_occupancy_by_bounds_and_by_launch() -> None:
    serial, template = report().kernels
    by_bounds = serial.occupancy("sm_90a")
    assert by_bounds is not None and (by_bounds.ctas, by_bounds.limiter) == (5, "registers")
    full = serial.occupancy("sm_90a", dynamic_shared=210_000)
    assert full is not None and (full.ctas, full.limiter) == (1, "shared memory")
    assert template.occupancy("sm_90a") is None
    assert template.occupancy("sm_12", threads=128) is None


def test_serialised_wgmma_and_ignored_setmaxnreg_are_loud_and_have_a_line() -> None:
    loud = {finding.code: finding for finding in report().findings if finding.loud}
    assert set(loud) == {"C7510", "C7508"}
    assert loud["C7510"].line == 10 and loud["C7510"].kernel.startswith("serial(")
    assert "_Z6serial" not in loud["C7510"].text
    assert loud["C7508"].line == 20


def test_other_messages_are_quiet_and_come_later() -> None:
    findings = report().findings
    assert [finding.loud for finding in findings] == sorted(
        (f.loud for f in findings), reverse=True
    )
    quiet = {finding.code: finding for finding in findings if not finding.loud}
    assert quiet["#177-D"].line == 17
    assert quiet["C7519"].line == 10 and "line 10" in quiet["C7519"].text


def test_a_report_survives_its_record() -> None:
    made = report()
    assert from_plain(CodegenReport, to_plain(made)) == made


def test_what_changed_since_the_parent() -> None:
    before = report()
    log = LOG.replace("816 bytes spill stores", "0 bytes spill stores").replace(
        "Used 30", "Used 40"
    )
    after = report(log.replace("ILi3E", "ILi4E"))
    changes = {(c.kernel.partition("(")[0], c.metric): c for c in compare_reports(before, after)}
    assert set(changes) == {("serial", "registers"), ("serial", "spill stores")}
    spills = changes["serial", "spill stores"]
    assert (spills.before, spills.after, spills.worse) == (816, 0, False)
    assert changes["serial", "registers"].worse is None


def test_new_and_lost_kernels_are_changes() -> None:
    whole = report()
    part = replace(whole, kernels=whole.kernels[:1])
    assert [(c.metric, c.before, c.after) for c in compare_reports(part, whole)] == [
        ("kernel", 0, 1)
    ]
    assert [(c.metric, c.before, c.after) for c in compare_reports(whole, part)] == [
        ("kernel", 1, 0)
    ]


def test_counts_are_compared_only_if_both_have_them() -> None:
    sass = ".text._Z4tmplILi3EEvPf:\n        /*0000*/                   STL [R1], R2 ;\n"
    counted = report(sass=sass, missing="")
    assert counted.kernels[1].instructions == {"STL": 1, "all": 1}
    assert compare_reports(report(), counted) == ()
    more = report(sass=sass + "        /*0010*/                   STL [R1], R2 ;\n", missing="")
    changes = compare_reports(counted, more)
    assert [(c.metric, c.after, c.worse) for c in changes] == [("STL", 2, True), ("all", 2, None)]


def test_lines_of_other_files_are_not_taken_for_the_kernels() -> None:
    lines = ptx_lines(PTX)
    assert lines[6] == 0 and lines[9] == 10 and lines[14] == 20


def test_a_log_without_kernels_is_an_empty_report() -> None:
    empty = make_report("", "", "", arch="sm_80", compiler="13.0.88")
    assert empty.kernels == () and empty.findings == ()


def test_a_name_that_is_not_mangled_stays() -> None:
    assert demangle("kernel") == "kernel"
    assert demangle("_Z4tmplILi3EEvPf") == "void tmpl<3>(float*)"


def test_the_record_is_short_and_has_the_ctas() -> None:
    record = report_record(report())
    serial, template = record["kernels"]
    assert (serial["name"], serial["ctas"], serial["limiter"]) == ("serial", 5, "registers")
    assert serial["metrics"]["spill stores"] == 816
    assert (template["name"], template["ctas"]) == ("tmpl<3>", None)
    assert record["missing"] == "no nvdisasm"
    assert [finding["loud"] for finding in record["findings"]][:2] == [True, True]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void (anonymous namespace)::gemm_kernel<(anonymous namespace)::Config<256, 3> >(Params)",
            "gemm_kernel<Config<256, 3> >",
        ),
        ("run(float*)", "run"),
        ("void f<(int)3, (int)4>(float*)", "f<(int)3, (int)4>"),
        ("kernel_with_no_arguments", "kernel_with_no_arguments"),
        ("k" * 100, "k" * 59 + "…"),
    ],
)
def test_names_of_kernels_lose_what_nobody_reads(name: str, short: str) -> None:
    assert short_name(name) == short


def test_a_source_without_kernels_needs_no_disassembler() -> None:
    assert has_kernels(LOG)
    assert not has_kernels("ptxas info    : 0 bytes gmem\n")
