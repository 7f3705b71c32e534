"""The directive held against the code: rules as data, each silent where a text cannot decide it.

The rules of `device_lint` are about code that is wrong whatever is said of it; these are about code that is
not what the directive says, and about traps of flags that hold on every target. All of them are warnings:
a candidate is evaluated all the same, and its findings are shown beside it and given to the agents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kerneltui.evaluation.directive_claim import Claim
from kerneltui.evaluation.directive_copies import whole_copies
from kerneltui.evaluation.host_collectives import COLLECTIVE
from kerneltui.model.directive import Backend, Directive, Placement, Sync
from kerneltui.model.kernel import Kernel, Language, TunableKind
from kerneltui.targets.cuda.finding import Finding, Level

__all__ = ["DIRECTIVE_RULES", "DirectiveRule", "lint_directive"]

_PEERS = (
    r"\bpeers\b|\bsignals\b|\bnccl(?:GetLsaPointer|GetPeerPointer)\b|\b(?:lsaPtr|peerPtr)\b"
    r"|(?:->|\.)window\b"
)
_STORES = r"\bpeers\s*\[|\bnccl(?:GetLsaPointer|GetPeerPointer)\s*\("
_PUBLISHES = (
    r"release|acq_rel|ATOMIC_SEQ_CST|seq_cst|__sync_|BarrierSession|Signal|signals|atomic|__threadfence_system"
    r"|cuStreamWriteValue|cuStreamBatchMemOp|sfence"
)
_FENCES = r"atomic_thread_fence|__atomic_thread_fence|__threadfence_system|sfence|mfence|\bfence\.|__sync_"
_FLAG = re.compile(r"flag|signal|gate|ready|word", re.IGNORECASE)
_SESSION = re.compile(r"\bnccl(?:Lsa|Gin)?BarrierSession\s*<[^;]*?>\s*(\w+)\s*[({]")

Places = Iterator[tuple[int, str]]
"""Lines, each with what there is to add."""


@dataclass(frozen=True, slots=True)
class DirectiveRule:
    """A way in which code is not what its directive says.

    Attributes:
        id: As in a finding.
        name: In a few words.
        what: What was found; `{}` is what the place adds.
        why: Why that matters.
        do: What to do about it.
        find: The lines of a claim that break the rule.
    """

    id: str
    name: str
    what: str
    why: str
    do: str
    find: Callable[[Claim], Places]

    def text(self, added: str = "") -> str:
        """What a finding of this rule says, in a line."""
        return f"{self.name}: {self.what.format(added)}; {self.why}; {self.do}"


def lint_directive(
    kernel: Kernel, directive: Directive, dimensions: Mapping[str, int], ranks: int
) -> tuple[Finding, ...]:
    """Holds a directive against the code that it is stated for, in the order of the lines.

    Args:
        kernel: The source. Python is not read: its windows and streams are objects that a text hides.
        directive: What the candidate says of itself.
        dimensions: Of the shape that the directive was worked out for.
        ranks: How many ranks there are; one has no peers, and rules about peers are silent.
    """
    if kernel.language is Language.PYTHON:
        return ()
    claim = Claim(kernel, directive, dimensions, ranks)
    found = [
        Finding(rule.id, Level.WARN, line, rule.text(added))
        for rule in DIRECTIVE_RULES
        for line, added in rule.find(claim)
    ]
    return tuple(sorted(dict.fromkeys(found), key=lambda f: (f.line, f.rule, f.text)))


def _at(claim: Claim, field: str, wrong: bool) -> Places:
    if wrong and claim.ranks > 1:
        yield claim.line_of(field), ""


def _no_peer(claim: Claim) -> Places:
    lsa = claim.directive.backend is Backend.LSA
    yield from _at(claim, "backend", lsa and not claim.has(_PEERS))


def _collective_left(claim: Claim) -> Places:
    if claim.directive.backend is not Backend.HOST and claim.ranks > 1:
        for line, match in claim.lines(COLLECTIVE):
            yield line, " ".join(match[0].rstrip("( ").split())


def _no_collective(claim: Claim) -> Places:
    host = claim.directive.backend is Backend.HOST
    wrong = host and claim.has(_STORES) and not claim.has(COLLECTIVE)
    yield from _at(claim, "backend", wrong)


def _no_engine(claim: Claim) -> Places:
    engine = claim.directive.backend is Backend.COPY_ENGINE
    yield from _at(claim, "backend", engine and not claim.has(r"\bcu(?:da)?Memcpy\w*\s*\("))


def _no_gin(claim: Claim) -> Places:
    gin = claim.directive.backend is Backend.GIN
    yield from _at(claim, "backend", gin and not claim.has(r"\bncclGin\b"))


def _whole(claim: Claim) -> Places:
    if claim.ranks > 1 and not claim.may_be_whole:
        for line in whole_copies(claim):
            yield line, str(claim.directive.chunk_bytes)


def _unread(claim: Claim) -> Places:
    texts = {literal.value for literal in claim.code.source.literals}
    for tunable in claim.kernel.tunables:
        own = rf"^[ \t]*#[ \t]*define[ \t]+{tunable.name}\b[^\n]*"
        rest = re.sub(own, "", claim.text, flags=re.MULTILINE)
        runtime = tunable.kind is TunableKind.RUNTIME and tunable.name in texts
        if not runtime and not re.search(rf"\b{tunable.name}\b", rest):
            yield tunable.line, tunable.name


def _nothing_told(claim: Claim) -> Places:
    waits = claim.directive.sync is not Sync.NONE and claim.directive.backend is not Backend.HOST
    wrong = waits and claim.has(_PEERS) and not claim.has(_PUBLISHES) and not claim.has(COLLECTIVE)
    yield from _at(claim, "sync", wrong)


def _relaxed(claim: Claim) -> Places:
    if claim.ranks < 2 or claim.has(_FENCES):
        return
    for call in claim.code.source.calls("__atomic_store_n|__atomic_load_n"):
        relaxed = call.arguments[-1:] == ("__ATOMIC_RELAXED",)
        if relaxed and _FLAG.search(call.arguments[0]):
            yield call.line, call.name
    pattern = r"\b(\w+)\s*(?:\[[^\]]*\])?\s*(?:\.|->)\s*(store|load)\s*\([^;()]*memory_order(?:_|::)relaxed"
    for line, match in claim.lines(pattern):
        if _FLAG.search(match[1]):
            yield line, match[2]


def _equal(claim: Claim) -> Places:
    for line, match in claim.lines(r"\bwhile\s*\(([^;{}]*?)!=\s*(?:[\w.>-]*[.>])?epoch\b"):
        yield line, " ".join(match[1].split())[:40]


def _reset(claim: Claim) -> Places:
    for call in claim.code.source.calls(r"memset|cudaMemset\w*|cuMemset\w*"):
        if call.arguments and re.search(r"\bsignals\b", call.arguments[0]):
            yield call.line, call.name


def _no_overlap(claim: Claim) -> Places:
    wanted = claim.directive.placement is Placement.STREAM_OVERLAP
    streams = r"\bside_streams\b|\bcu(?:da)?Stream(?:Create|Wait)\w*"
    cuda = claim.kernel.file.endswith(".cu")
    if wanted and cuda and not claim.has(streams):
        yield claim.line_of("placement"), ""


def _met_in_loop(claim: Claim) -> Places:
    if claim.directive.sync not in (Sync.FLAG_PER_CHUNK, Sync.COUNTER):
        return
    for kernel in claim.code.kernels:
        body = claim.code.body(kernel)
        names = set(_SESSION.findall(body))
        loops = claim.code.loops(kernel)
        for match in re.finditer(r"\b(\w+)\s*\.\s*sync\s*\(", body):
            offset = kernel.begin + match.start()
            if match[1] in names and any(first <= offset <= last for first, last in loops):
                yield claim.code.source.line(offset), str(claim.directive.sync)


DIRECTIVE_RULES: tuple[DirectiveRule, ...] = (
    DirectiveRule(
        "D01",
        "LSA without a peer",
        "the directive says lsa, but no pointer of a peer is used",
        "then nothing of this rank reaches another one by itself",
        "store to `peers[q]` and `signals[q]`, or state the backend that moves the data",
        _no_peer,
    ),
    DirectiveRule(
        "D02",
        "a host collective is left",
        "the directive's backend is not host, but {} is called",
        "the host still drives the transfer that the ranks are said to make",
        "take the call out, or state host",
        _collective_left,
    ),
    DirectiveRule(
        "D03",
        "host without a collective",
        "the directive says host, but memory of peers is used and no host collective is called",
        "the ranks move the data themselves",
        "state lsa or copy_engine, or keep the collective",
        _no_collective,
    ),
    DirectiveRule(
        "D04",
        "copy engine without a copy",
        "the directive says copy_engine, but no cudaMemcpy is called",
        "SMs do the work of which the copy engine is said to free them",
        "enqueue copies, or state lsa",
        _no_engine,
    ),
    DirectiveRule(
        "D05",
        "GIN without GIN",
        "the directive says gin, but no ncclGin is made",
        "nothing goes over the network by itself",
        "put with ncclGin, or state another backend",
        _no_gin,
    ),
    DirectiveRule(
        "D06",
        "the whole shard at once",
        "the directive says chunks of {} bytes, but this copy moves all that the rank has",
        "nothing overlaps, and a sweep over the chunk measures the same program again and again",
        "copy piece by piece as the pieces get ready, or state chunk_bytes 0",
        _whole,
    ),
    DirectiveRule(
        "D07",
        "a choice that nothing reads",
        "{} is declared, but the code does not read it",
        "all of its values are the same program, so a search over them is lost",
        "use it, or take the declaration out",
        _unread,
    ),
    DirectiveRule(
        "D08",
        "nobody is told",
        "the directive names flags, counters or a barrier, but the code publishes nothing",
        "a peer cannot know when the data is there",
        "store the epoch into the peers' signal words with release order, behind the data",
        _nothing_told,
    ),
    DirectiveRule(
        "D09",
        "a relaxed flag",
        "{} of a flag is relaxed, and there is no fence",
        "the flag may be seen before the data that it stands for",
        "store flags with release order and load them with acquire order",
        _relaxed,
    ),
    DirectiveRule(
        "D10",
        "waiting for exactly this epoch",
        "a wait ends only at this very epoch ({}!= epoch)",
        "a peer may be one call ahead, and its flag is then never equal: the wait does not end",
        "wait while the flag is less than the epoch",
        _equal,
    ),
    DirectiveRule(
        "D11",
        "flags are reset",
        "{} is called on signal words",
        "a peer may have written the next call's flag already, which is lost; after a warm-up it deadlocks",
        "never reset them: epochs only grow, compare with >=",
        _reset,
    ),
    DirectiveRule(
        "D12",
        "overlap on one stream",
        "the directive says stream_overlap, but no other stream is used",
        "work on one stream runs in turn",
        "ask for side_streams and join them with events, or state sequential",
        _no_overlap,
    ),
    DirectiveRule(
        "D13",
        "all ranks meet in a loop",
        "the directive says {}, but a barrier over all ranks stands in a loop",
        "each turn waits for the slowest rank, which flags are there to avoid",
        "tell each peer by a flag of its own, or state world",
        _met_in_loop,
    ),
)
"""All rules, in the order of their ids."""
