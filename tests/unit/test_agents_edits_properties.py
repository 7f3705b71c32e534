"""Whatever a reply says, its edits come where they belong, all of them, or it is refused with a reason."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from agents_edits_kernels import changed, occurrences, samples, spans, unlike
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kerneltui.agents.edits.applying import apply_reply
from kerneltui.agents.edits.carrying import carry_over
from kerneltui.agents.edits.edit import Edit, Reply, Rewrite
from kerneltui.agents.edits.failure import EditFailure, EditKind
from kerneltui.agents.edits.repairing import repair_note
from kerneltui.agents.edits.reply import read_reply
from kerneltui.agents.edits.tool_input import read_tool_input
from kerneltui.model.kernel import Kernel, parse_kernel

# -- places


@given(st.data())
def test_an_edit_comes_where_its_lines_are_or_is_ambiguous(data: st.DataObject):
    sample = data.draw(samples())
    wanted = data.draw(spans(sample, most=1))
    edit = wanted[0].edit(sample)
    expected = changed(sample, wanted)
    try:
        applied = apply_reply(sample.kernel, Reply((edit,)))
    except EditFailure as failure:
        if failure.kind is EditKind.IDENTICAL:
            same = parse_kernel(expected).token_hash()
            assert same == sample.kernel.token_hash()
        else:
            assert failure.kind is EditKind.AMBIGUOUS
            # a line that the edit keeps may be a context of either place, so the count decides alone
            assert occurrences(sample, edit.search) > 1
        return
    assert applied.source == expected
    assert occurrences(sample, edit.search) == 1


@given(st.data())
def test_all_edits_of_a_reply_are_applied_or_none(data: st.DataObject):
    sample = data.draw(unlike(samples()))
    wanted = data.draw(spans(sample))
    edits: list[Edit | Rewrite] = data.draw(st.permutations([s.edit(sample) for s in wanted]))
    expected = changed(sample, wanted)
    assume(parse_kernel(expected).token_hash() != sample.kernel.token_hash())
    assert apply_reply(sample.kernel, Reply(tuple(edits))).source == expected
    at = data.draw(st.integers(0, len(edits)))
    spoilt = [*edits[:at], Edit(("nowhere(to, be, found);",), ("x();",)), *edits[at:]]
    with pytest.raises(EditFailure) as caught:
        apply_reply(sample.kernel, Reply(tuple(spoilt)))
    assert caught.value.kind is EditKind.MISSING
    assert caught.value.number == at + 1


@given(st.data())
def test_frozen_lines_never_change(data: st.DataObject):
    sample = data.draw(unlike(samples()))
    part = data.draw(st.sampled_from(sample.frozen))
    at = data.draw(st.integers(0, len(part) - 1))
    assume(part[at].strip())
    new = data.draw(st.sampled_from([(), ("other();",), (part[at], "more();")]))
    with pytest.raises(EditFailure) as caught:
        apply_reply(sample.kernel, Reply((Edit((part[at],), new),)))
    assert caught.value.kind is EditKind.FROZEN


# -- dialects


@st.composite
def dialects(draw: st.DrawFn, edits: list[Edit]) -> str:
    """The text of a reply with the edits, in one of many forms."""
    marks = draw(st.integers(5, 9))
    shift = draw(st.sampled_from([0, 0, 4, 2]))
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    blank = draw(st.sampled_from(["", "", "  ", "\t"]))
    search_word, end_word = draw(st.sampled_from([("SEARCH", "REPLACE"), ("search", "replace")]))
    fence = draw(st.sampled_from(["", "```", "```cpp", "~~~cuda", "````c++"]))
    parts: list[str] = [draw(st.sampled_from(["", "I change the loop.", "Heading\n=======\n"]))]
    for edit in edits:
        block = [
            f"{'<' * marks} {search_word}",
            *(" " * shift + line + blank if line else line for line in edit.search),
            "=" * marks,
            *(" " * shift + line if line else line for line in edit.replace),
            f"{'>' * marks} {end_word}",
        ]
        if fence:
            ending = re.match(r"[`~]+", fence)
            assert ending
            block = [fence, *block, ending[0]]
        parts += [*block, draw(st.sampled_from(["", "and", "\nThis helps since x << y."]))]
    text = newline.join("\n".join(parts).split("\n"))
    return text if draw(st.booleans()) else text.rstrip()


@given(st.data())
def test_edits_survive_every_dialect(data: st.DataObject):
    sample = data.draw(unlike(samples()))
    wanted = data.draw(spans(sample))
    expected = changed(sample, wanted)
    assume(parse_kernel(expected).token_hash() != sample.kernel.token_hash())
    edits = [span.edit(sample) for span in wanted]
    # blank lines at the ends of a search are not always kept by who writes it: they bind nothing
    assume(all(edit.search[0] and edit.search[-1] for edit in edits))
    reply = read_reply(data.draw(dialects(edits)))
    assert len(reply.edits) == len(edits)
    assert apply_reply(sample.kernel, reply).source == expected


@given(st.data())
def test_edits_survive_tool_input(data: st.DataObject):
    sample = data.draw(unlike(samples()))
    wanted = data.draw(spans(sample))
    expected = changed(sample, wanted)
    assume(parse_kernel(expected).token_hash() != sample.kernel.token_hash())
    newline = data.draw(st.sampled_from(["\n", "\r\n"]))
    end = data.draw(st.sampled_from(["", newline]))
    items = [
        {
            "search": newline.join(edit.search) + end,
            "replace": newline.join(edit.replace) + (end if edit.replace else ""),
        }
        for edit in (span.edit(sample) for span in wanted)
        # one blank line, written without an end, is the same text as none
        if edit.replace != ("",) and edit.search[-1] and (not edit.replace or edit.replace[-1])
    ]
    assume(len(items) == len(wanted))
    text = json.dumps({"edits": items, "file": "kernel.cpp"})
    for reply in (read_tool_input(json.loads(text)), read_reply(f"So:\n{text}\n")):
        assert apply_reply(sample.kernel, reply).source == expected


@given(st.data())
def test_a_region_is_rewritten_as_it_is_given(data: st.DataObject):
    sample = data.draw(samples())
    number = data.draw(st.integers(0, len(sample.regions) - 1))
    body = data.draw(st.lists(st.sampled_from(["    a(1);", "b(2);", "", "\tc(3);"]), max_size=5))
    bodies = [list(part) for part in sample.regions]
    bodies[number] = body
    expected = sample.text(bodies)
    assume(parse_kernel(expected).token_hash() != sample.kernel.token_hash())
    text = "\n".join([f"<<<<<<< REGION part{number}", *body, ">>>>>>> REGION"])
    assert apply_reply(sample.kernel, read_reply(text)).source == expected


# -- nonsense

FRAGMENTS = [
    "<<<<<<< SEARCH",
    "<<<<< search",
    "<<<<<<<<< REGION part0",
    "<<<<<<< FILE kernel.cpp",
    "=======",
    "=====",
    ">>>>>>> REPLACE",
    ">>>>> REPLACE",
    ">>>>>>> REGION",
    ">>>>>>> FILE",
    "```",
    "```cpp",
    "~~~",
    "// kerneltui: evolve begin part0",
    "// kerneltui: evolve end",
    "// kerneltui: tunable A in 1 2",
    "#define A 1",
    "",
    "// ...",
    "12 | load(x1, 0);",
    '{"edits": [{"search": "load(x1, 0);", "replace": ""}]}',
    '{"edits": [',
    "&lt;&lt;&lt;&lt;&lt;&lt;&lt; SEARCH",
    "@@ -1,2 +1,2 @@",
    "load(x1, 0);",
    "    copy(x2, 1);",
]


def frozen_parts(source: str) -> list[str]:
    """All text but what is between the marks."""
    return re.split(
        r"(?ms)(?<=^// kerneltui: evolve begin part\d\n).*?(?=^// kerneltui: evolve end)", source
    )


def held(kernel: Kernel, reply: Reply) -> None:
    """Applies a reply; what it gives must be a legal child, what it raises must be readable."""
    try:
        applied = apply_reply(kernel, reply)
    except EditFailure as failure:
        assert str(failure) and "\n" not in str(failure)
        assert len(repair_note(failure)) <= 3000
        return
    assert frozen_parts(applied.source) == frozen_parts(kernel.source)
    assert parse_kernel(applied.source).token_hash() != kernel.token_hash()
    assert applied.placed


@given(st.data())
def test_no_text_breaks_the_reader_and_no_block_is_lost(data: st.DataObject):
    sample = data.draw(samples())
    lines = st.one_of(
        st.sampled_from(FRAGMENTS),
        st.sampled_from([line for body in sample.regions for line in body]),
        st.text(max_size=20),
    )
    text = "\n".join(data.draw(st.lists(lines, max_size=25)))
    kernel = parse_kernel(sample.text().replace("\r\n", "\n"), "kernel.cpp")
    for whole in (False, True):
        try:
            reply = read_reply(text, whole_file=whole)
        except EditFailure as failure:
            assert str(failure) and "\n" not in str(failure)
            continue
        opened = re.findall(
            r"(?im)^\s*<{5,9}\s*(?:SEARCH|REGION|FILE)\b", text.replace("\r\n", "\n")
        )
        assert len(reply.edits) >= len(opened)
        held(kernel, reply)


@given(st.text())
def test_any_text_is_read_or_refused(text: str):
    kernel = parse_kernel(SMALL)
    try:
        reply = read_reply(text, whole_file=True)
    except EditFailure as failure:
        assert failure.kind in EditKind
        return
    held(kernel, reply)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["edits", "search", "replace", "region", "file", "rewrite"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_tool_input_is_read_or_refused(data: Any):
    kernel = parse_kernel(SMALL)
    try:
        reply = read_tool_input(data)
    except EditFailure as failure:
        assert failure.kind in EditKind
        return
    held(kernel, reply)


TEXTS = st.lists(st.text(max_size=12).filter(lambda line: "\n" not in line), max_size=4).map(tuple)


@given(
    st.lists(st.builds(Edit, TEXTS, TEXTS, st.just(""), st.sampled_from(["", "part0"])), max_size=3)
)
def test_any_edit_is_applied_or_refused(edits: list[Edit | Rewrite]):
    held(parse_kernel(SMALL), Reply(tuple(edits)))


SMALL = """\
#include <cstdint>
// kerneltui: tunable STEP in 1 2
#define STEP 1
int frozen;
// kerneltui: evolve begin part0
int a = 1;

    int b = a + 2; // more
// kerneltui: evolve end
int last;
"""


# -- carrying over


@settings(max_examples=15)  # each runs git
@given(st.data())
def test_changes_of_other_regions_are_carried_over(data: st.DataObject):
    sample = data.draw(unlike(samples(least=2)))
    here = data.draw(st.integers(0, len(sample.regions) - 1))
    mine = data.draw(spans(sample, only=frozenset({here})))
    theirs = data.draw(spans(sample, only=frozenset(range(3)) - {here}))
    both = sorted([*mine, *theirs], key=lambda span: (span.region, span.first))
    old, proposal, new = (
        parse_kernel(text, "kernel.cpp")
        for text in (sample.text(), changed(sample, mine), changed(sample, theirs))
    )
    expected = parse_kernel(changed(sample, both), "kernel.cpp")
    assume(expected.token_hash() != new.token_hash())
    carried = carry_over(old, proposal, new)
    assert carried.kernel is not None and not carried.conflicts
    assert carried.kernel.source == expected.source
