"""Rules about memory that peers write: flags, the order of stores, and stale reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kerneltui.evaluation.device_code import DeviceCode, EffectKind
from kerneltui.evaluation.device_rule import LintContext, Rule, error, has, lines, warn
from kerneltui.targets.cuda.finding import Finding

__all__ = ["MEMORY_RULES"]

_WINDOW = re.compile(r"peer|remote|window|symm|signal|\bflag", re.IGNORECASE)


def _l25(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    source = code.source
    for line, _m in lines(code, r"\bwhile\s*\([^;{}]*\*\s*\(\s*(?:const\s+)?volatile\b"):
        yield warn("L25", line, "polling a volatile orders nothing: take ld.acquire.sys")
    for line, match in lines(code, r"\*\s*\(\s*volatile\s+[\w\s]+\*\s*\)\s*([^;=]+?)=[^=]"):
        if _WINDOW.search(match[1]):
            yield warn(
                "L25", line, "a volatile store of a flag orders nothing: take st.release.sys"
            )
    for literal in source.literals:
        weak = re.search(r"\b(?:st|red|atom)\.release\.(?:gpu|cta|cluster)\.global", literal.value)
        if not literal.assembly or not weak:
            continue
        operands = source.code[literal.offset : source.code.find(";", literal.offset)]
        if _WINDOW.search(operands):
            text = f"{weak[0]}: a peer needs system scope (.sys)"
            yield warn("L25", literal.line, text)


def _l26(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    source = code.source
    loop = r"\bfor\s*\(\s*\w+\s+(\w+)\s*=\s*0\s*;\s*\1\s*<\s*(?:[\w.>-]*(?:lsaSize|nRanks|n?ranks|RANKS))\s*;"
    for line, match in lines(code, loop):
        function = code.function_at(match.start())
        if function is None:
            continue
        opening = source.code.find("(", match.start())
        start = source.closing(opening) + 1
        brace = re.compile(r"\s*\{").match(source.code, start)
        stop = source.closing(brace.end() - 1) if brace else source.code.find(";", start)
        body = source.code[start:stop]
        name = match[1]
        pointer = rf"ncclGetLsaPointer\s*\([^;]*,\s*{name}\s*\)|\bpeers\s*\[\s*{name}\s*\]"
        moves = re.search(r"\]\s*=[^=]|\bmemcpy|Memcpy\w*Async\s*\(", body)
        if re.search(pointer, body) and moves and "for" in body:
            text = "all ranks begin with rank 0: begin with (rank + p) % ranks"
            yield warn("L26", line, text)


def _l28(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    for kernel in code.kernels:
        effects = code.effects(kernel)
        loops = code.loops(kernel)
        for index, flag in enumerate(effects):
            if flag.kind is not EffectKind.FLAG_STORE:
                continue
            # what ran before: the text above, and in a loop also what is below
            earlier = effects[:index][::-1]
            if not any(e.kind is EffectKind.BULK_STORE for e in earlier):
                later = effects[index + 1 :][::-1]
                inside = [(a, b) for a, b in loops if a <= flag.site <= b]
                earlier += [e for e in later if any(a <= e.site <= b for a, b in inside)]
            between: set[EffectKind] = set()
            for effect in earlier:
                if effect.kind is EffectKind.BULK_STORE:
                    if EffectKind.WAIT_ALL not in between:
                        text = "a flag behind bulk stores needs cp.async.bulk.wait_group 0, without .read"
                        yield error("L28", flag.line, text)
                    elif EffectKind.PROXY_FENCE not in between:
                        text = "a flag behind bulk stores needs fence.proxy.async before it"
                        yield error("L28", flag.line, text)
                    break
                between.add(effect.kind)


def _l29(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    for kernel in code.kernels:
        effects = code.effects(kernel)
        for index, wait in enumerate(effects):
            if wait.kind is not EffectKind.FLAG_WAIT:
                continue
            first, last = code.guarded(kernel, wait.site)
            reached = False
            for effect in effects[index + 1 :]:
                reached |= effect.kind is EffectKind.CTA_BARRIER
                if effect.kind is EffectKind.PROXY_FENCE:
                    break
                if effect.kind is EffectKind.BULK_LOAD and (
                    reached or first <= effect.site <= last
                ):
                    text = "a bulk load behind a flag needs fence.proxy.async between them"
                    yield error("L29", effect.line, text)
                    break


def _l30(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    source = code.source
    windows: set[str] = set()
    for _l, match in lines(code, r"(\w+)\s*=\s*([^;=]+);"):
        if re.search(
            r"\bnccl\w*Pointer\s*\(|\bpeers\s*\[|(?:->|\.)window\b|\bsignals\s*\[", match[2]
        ):
            windows.add(match[1])
    for call in source.calls("__ldg"):
        names = set(re.findall(r"\w+", " ".join(call.arguments)))
        if names & windows or any(_WINDOW.search(name) for name in names):
            text = "__ldg may return what it read before the peer's store: load plainly"
            yield error("L30", call.line, text)
    for literal in source.literals:
        if literal.assembly and re.search(r"\bld\.global(?:\.\w+)*\.nc\b", literal.value):
            operands = source.code[literal.offset : source.code.find(";", literal.offset)]
            names = set(re.findall(r"\w+", operands))
            if names & windows or any(_WINDOW.search(name) for name in names):
                text = "ld.global.nc on a window may return stale data: load plainly"
                yield error("L30", literal.line, text)


_EARLY_LAUNCH = (
    r"\bprogrammaticStreamSerializationAllowed\b"
    r"|\b(?:cudaLaunchAttribute|CU_LAUNCH_ATTRIBUTE_)(?:Programmatic|PROGRAMMATIC_)\w+"
)


def _l31(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    """A call that begins before the one before it has ended reads what that has not written yet."""
    waits = has(code, r"\bcudaGridDependencySynchronize\s*\(") or any(
        literal.assembly and "griddepcontrol.wait" in literal.value
        for literal in code.source.literals
    )
    if waits:
        return
    for line, match in lines(code, _EARLY_LAUNCH):
        text = f"{match[0]}: no kernel waits for its predecessor (griddepcontrol.wait)"
        yield error("L31", line, text)


MEMORY_RULES: tuple[Rule, ...] = (_l25, _l26, _l28, _l29, _l30, _l31)
"""L25, L26 and L28 to L31; L27 is about the directive, see `directive_lint`."""
