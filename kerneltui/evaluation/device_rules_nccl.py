"""Rules about calls: of the host's side, and of NCCL's device API."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kerneltui.evaluation.device_code import DeviceCode, Function
from kerneltui.evaluation.device_rule import LintContext, Rule, error, has, lines, warn
from kerneltui.targets.cuda.finding import Finding, Level
from kerneltui.targets.cuda.source import Call

__all__ = ["NCCL_RULES"]

_INITIALIZER = 22900  # NCCL that demands the initialiser of its requirements
_ONE_THREAD = re.compile(
    r"threadIdx\.x\s*==\s*\d|!\s*threadIdx\.x|\bthread_rank\(\)\s*==\s*0|\b(?:tid|lane(?:_?id)?)\s*==\s*0"
    r"|!\s*(?:tid|lane)\b|\belect"
)
_UNCHECKED = re.compile(r"\b((?:nccl|cuda|cu)[A-Z]\w*)\s*\(")
_MAY_BE_DROPPED = re.compile(
    r"\w*(?:Destroy|Free|Deregister|GetLastError|PeekAtLastError|Unload)\w*"
)
_ATOMIC_ORDER = re.compile(r"memory_order(?:_|::)(\w+)")


def _l03(code: DeviceCode, context: LintContext) -> Iterator[Finding]:
    if not context.nccl_code:
        return
    new = context.nccl_code >= _INITIALIZER
    macro = r"\bNCCL_DEV_COMM_REQUIREMENTS_INITIALIZER\b"
    if not new:
        for line, _ in lines(code, macro):
            text = "this NCCL has no initializer macro: set the requirements with = {}"
            yield Finding("L03", Level.BLOCK, line, text)
    elif not has(code, macro):
        for line, _ in lines(code, r"\bncclDevCommRequirements(?:_t)?\s+\w+\s*[;={]"):
            text = "this NCCL wants = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER, not zeros"
            yield Finding("L03", Level.BLOCK, line, text)


def _l04(code: DeviceCode, context: LintContext) -> Iterator[Finding]:
    if context.gin:
        return
    for line, match in lines(
        code, r"\bnccl(?:Gin\b|GinBarrierSession\b|Gin_\w+)|\bginForceEnable\b"
    ):
        why = f": {context.gin_missing}" if context.gin_missing else ""
        text = f"needs NCCL with GIN{why}; here the kernel only compiles ({match[0]})"
        yield error("L04", line, text)
        return


def _l05(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    for call in code.source.calls("ncclDevCommCreate"):
        rest = code.source.code[call.end : call.end + 400]
        behind = re.split(r"<<<|\bcudaLaunchKernel\w*|\bnccl[A-Z]\w*\s*\(", rest)[0]
        if "cudaGetLastError" not in behind:
            text = "ncclDevCommCreate leaves a stale CUDA error: call cudaGetLastError() after it"
            yield error("L05", call.line, text)


def _l06(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    source = code.source
    for match in _UNCHECKED.finditer(source.code):
        name, end = match[1], source.closing(match.end() - 1) + 1
        if _MAY_BE_DROPPED.fullmatch(name) or not source.code[end:].lstrip().startswith(";"):
            continue
        before = source.code[: match.start()].rstrip()
        guard = re.search(r"\b(?:if|for|while)\s*\([^;{}]*\)$|\belse$", before)
        if before[-1:] in ("", ";", "{", "}") or guard:
            line = source.line(match.start())
            if code.function_at(match.start()) is not None:
                yield error("L06", line, f"the result of {name} is not looked at")
    for call in source.calls("ncclCommWindowRegister"):
        window = call.arguments[3].lstrip("& ") if len(call.arguments) > 3 else ""
        name = re.escape(window)
        tested = rf"!\s*{name}\b|{name}\s*[!=]=\s*(?:NULL|nullptr|0)\b|if\s*\(\s*{name}\s*\)"
        if window and not re.search(tested, source.code):
            text = f"{window} may come back NULL where windows are not supported: test it"
            yield error("L06", call.line, text)


def _l10(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    for kernel in code.kernels:
        body = code.body(kernel)
        sessions = set(re.findall(r"\bncclLsaBarrierSession\s*<[^;]*?>\s*(\w+)\s*[({]", body))
        remote = set(
            re.findall(r"(\w+)\s*=\s*[^;=]*\bnccl(?:GetLsaPointer|GetPeerPointer)\s*\(", body)
        )
        written = [at for name in remote for at in _written(body, name)]
        local = set(re.findall(r"(\w+)\s*=\s*[^;=]*\bncclGetLocalPointer\s*\(", body))
        own = [at for name in local for at in _written(body, name)]
        pulled = [
            match.start()
            for name in remote
            for match in re.finditer(rf"(?:[=(,+]|\breturn\b)\s*\*?{name}\b\s*(?:\[|[;,)])", body)
        ]
        for match in re.finditer(r"\b(\w+)\s*\.\s*sync\s*\(", body):
            if match[1] not in sessions:
                continue
            close = code.source.closing(kernel.begin + match.end() - 1)
            order = _ATOMIC_ORDER.search(code.source.code, kernel.begin + match.end(), close)
            line = code.source.line(kernel.begin + match.start())
            if order and order[1] in ("acquire", "release"):
                text = f"sync({order[1]}) gives one half only: take memory_order_acq_rel"
                yield error("L10", line, text)
            if order and order[1] == "relaxed" and any(at < match.start() for at in written):
                text = "sync(relaxed) after stores to a peer orders nothing: take acq_rel"
                yield error("L10", line, text)
            elif order and order[1] == "relaxed":
                before = any(at < match.start() for at in own)
                if before and any(at > match.start() for at in pulled):
                    text = "sync(relaxed) between stores and a peer's loads orders nothing: take acq_rel"
                    yield error("L10", line, text)


def _written(body: str, name: str) -> list[int]:
    """Where a pointer is stored through."""
    stores = rf"\b{name}\s*\[[^\]]*\]\s*=[^=]|\*\s*{name}\s*=[^=]"
    return [match.start() for match in re.finditer(stores, body)]


def _l11(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    told = r"\bncclGin_Signal|\bwaitSignal|\bncclGinBarrierSession\b|\bncclBarrierSession\b|\.\s*signal\s*\("
    if has(code, r"\.\s*put\s*\(") and not has(code, told):
        for line, _m in lines(code, r"\.\s*flush\s*\("):
            text = "flush says that the source can be used again, not that the data arrived: add a signal"
            yield error("L11", line, text)


def _l12(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    again = has(code, r"\bresetSignal\s*\(|\breadSignal\s*\(")
    for call in code.source.calls("waitSignalMeetShadow|waitSignal"):
        fixed = len(call.arguments) > 2 and re.fullmatch(r"\d+[uUlL]*", call.arguments[2])
        if not again and (call.name == "waitSignalMeetShadow" or fixed):
            text = "in a second call the signal is ahead already: reset it, or read it when the call begins"
            yield error("L12", call.line, f"{call.name}: {text}")


def _l13(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    seen: dict[str, set[str]] = {}
    for line, match in lines(code, r"\bncclGin_Signal(Inc|Add)\s*[({]\s*([^,)}]+)"):
        kinds = seen.setdefault("".join(match[2].split()), set())
        kinds.add(match[1])
        if len(kinds) == 2:
            text = f"SignalInc and SignalAdd on signal {match[2].strip()}: take one of them"
            yield error("L13", line, text)
            kinds.clear()


def _l14(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    for function in code.functions:
        body = code.body(function)
        thread = _thread_names(body)
        collective = [
            match.start()
            for match in re.finditer(r"\b__syncthreads\s*\(\s*\)|\bncclCoopCta\s*[({]", body)
        ]
        for at in collective:
            offset = function.begin + at
            if any(_depends(text, thread) for text in code.conditions(function, offset)):
                text = "a call of the whole CTA in a branch that not all of its threads take"
                yield error("L14", code.source.line(offset), text)
        for match in re.finditer(r"\bif\s*\(", body):
            opening = function.begin + match.end() - 1
            close = code.source.closing(opening)
            condition = code.source.code[opening + 1 : close]
            leaves = re.compile(r"\s*\{?\s*return\s*;").match(code.source.code, close + 1)
            later = [at for at in collective if function.begin + at > close]
            if leaves and later and _depends(condition, thread):
                text = "some threads return here, and the CTA synchronises later"
                yield error("L14", code.source.line(opening), text)


def _thread_names(body: str) -> set[str]:
    """Variables that differ from thread to thread, by their initialisers."""
    return {
        match[1]
        for match in re.finditer(r"\b(\w+)\s*=\s*([^;=]+);", body)
        if "threadIdx" in match[2]
    }


def _depends(condition: str, names: set[str]) -> bool:
    if re.search(r"__CUDA_ARCH__|__any_sync|__all_sync|__syncthreads", condition):
        return False
    return "threadIdx" in condition or any(re.search(rf"\b{name}\b", condition) for name in names)


def _l15(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    for function in code.functions:
        seen: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}
        for call in _sessions(code, function):
            block = code.guarded(function, call.offset)
            key = (call.name, call.arguments)
            if key in seen and seen[key][0] <= block[0] and block[1] <= seen[key][1]:
                text = "a second session of the same index while the first one lives"
                yield error("L15", call.line, text)
            seen.setdefault(key, block)


def _sessions(code: DeviceCode, function: Function) -> Iterator[Call]:
    for call in code.source.calls(r"nccl(?:Lsa|Gin)?BarrierSession"):
        if function.begin <= call.offset < function.end:
            yield call


def _l16(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    if has(code, r"\blsaSize\b|\bncclTeamRankIsMember\b"):
        return
    for line, _m in lines(code, r"\bncclGetPeerPointer\s*\(|\.\s*peerPtr\s*\("):
        text = "the pointer of a peer that cannot be reached is not NULL: test lsaSize or the team first"
        yield error("L16", line, text)


def _l17(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    for call in code.source.calls("ncclCoopWarpSpan"):
        if len(call.arguments) == 3 and re.fullmatch(r"\d+", call.arguments[2]):
            number = int(call.arguments[2])
            if number >= 15:
                text = f"span id {number} has no named barrier: take 0 to 14"
                yield error("L17", call.line, text)
            for literal in code.source.literals:
                if literal.assembly and re.search(rf"\bbar\.sync\s+{number + 1}\b", literal.value):
                    text = f"named barrier {number + 1} belongs to span id {number}: take another"
                    yield error("L17", literal.line, text)


def _l18(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    contexts = {
        match[1]: match[2]
        for _l, match in lines(code, r"\bncclGin\s+(\w+)\s*[({][^;(){}]*,\s*(\d+)\s*[)}]")
    }
    put: dict[str, set[str]] = {}
    for _l, match in lines(code, r"\b(\w+)\s*\.\s*put\s*\(([^;]*)\)\s*;"):
        for signal in re.findall(r"ncclGin_Signal(?:Inc|Add)\s*[({]\s*([^,)}]+)", match[2]):
            if match[1] in contexts:
                put.setdefault(signal.strip(), set()).add(contexts[match[1]])
    pattern = r"\b(\w+)\s*\.\s*waitSignal\w*\s*\([^;,]*,\s*([^,;)]+)"
    for line, match in lines(code, pattern):
        mine, theirs = contexts.get(match[1]), put.get(match[2].strip())
        if mine and theirs and mine not in theirs:
            text = f"signal {match[2].strip()} is put on context {', '.join(theirs)}, waited for on {mine}"
            yield error("L18", line, text)


def _l19(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    for call in code.source.calls("increaseSignalShadow|resetSignal|resetCounter"):
        function = code.function_at(call.offset)
        if function is None:
            continue
        around = " && ".join(code.conditions(function, call.offset))
        if not _ONE_THREAD.search(around):
            yield error("L19", call.line, f"{call.name} is for exactly one thread of the CTA")


def _l20(code: DeviceCode, context: LintContext) -> Iterator[Finding]:
    for call in code.source.calls("waitCounter"):
        if len(call.arguments) > 3:
            yield error("L20", call.line, "waitCounter does not look at its bits")
    if not has(code, r"\bincreaseSignalShadow\s*\(") and context.nccl_code in (0, 22809):
        for call in code.source.calls("waitSignalFollowShadow"):
            text = "waitSignalFollowShadow does not move the shadow: call increaseSignalShadow"
            yield error("L20", call.line, text)


def _l21(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    coops: dict[str, set[str]] = {"put": set(), "flush": set()}
    places: list[int] = []
    for line, match in lines(code, r"\.\s*(put|flush)\s*\(([^;]*)\)\s*;"):
        coops[match[1]] |= set(re.findall(r"\bncclCoop(\w+)", match[2])) or {"Thread"}
        if match[1] == "flush":
            places.append(line)
    if places and coops["put"] and not coops["put"] & coops["flush"]:
        text = (
            f"flush by {'/'.join(sorted(coops['flush']))}, puts by {'/'.join(sorted(coops['put']))}"
        )
        yield warn("L21", places[0], text)


def _l23(code: DeviceCode, _: LintContext) -> Iterator[Finding]:
    for call in code.source.calls("put"):
        if len(call.arguments) > 11 and code.source.code[: call.offset].rstrip().endswith("."):
            text = (
                "the last two arguments of put mean different things per back end: leave them out"
            )
            yield warn("L23", call.line, text)


NCCL_RULES: tuple[Rule, ...] = (
    *(_l03, _l04, _l05, _l06, _l10, _l11, _l12, _l13, _l14),
    *(_l15, _l16, _l17, _l18, _l19, _l20, _l21, _l23),
)
"""L03 to L23."""
