from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_strategies import FINITE, sample_of, values_of

from kerneltui.model import command, event
from kerneltui.model.candidate import AgentName, Candidate
from kerneltui.model.command import Accept, Progress, decode_command, encode_command
from kerneltui.model.errors import NewerSchema, RecordError
from kerneltui.model.event import (
    EVENT_KINDS,
    SCHEMA,
    AgentMessage,
    Event,
    decode_event,
    encode_event,
    event_kind,
)
from kerneltui.model.event_subject import event_subject
from kerneltui.model.record import (
    LATER,
    canonical_json,
    from_plain,
    parse_json,
    to_plain,
)
from kerneltui.model.state import State

SAMPLES: list[Event] = [sample_of(kind) for kind in EVENT_KINDS.values()]
EVENTS = st.one_of([values_of(kind) for kind in EVENT_KINDS.values()])
COMMAND_KINDS: Any = command.Command.__args__
COMMANDS = st.one_of([values_of(kind) for kind in COMMAND_KINDS])
ATOMS = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | FINITE
JSON = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def plain_event(event: Event) -> dict[str, Any]:
    return parse_json(encode_event(event))


def encoded(plain: object) -> bytes:
    return json.dumps(plain).encode()


# -- round trips


@given(EVENTS)
def test_events_come_back(made: Event):
    data = encode_event(made)
    again = decode_event(data)
    assert again == made
    assert type(again) is type(made)
    assert encode_event(again) == data


@given(COMMANDS)
def test_commands_come_back(made: command.Command):
    plain = parse_json(canonical_json(encode_command(made)))
    assert decode_command(plain) == made


@given(values_of(Progress), values_of(Candidate))
@settings(max_examples=30)
def test_records_without_a_kind_come_back(progress: Progress, candidate: Candidate):
    assert from_plain(Progress, parse_json(canonical_json(progress))) == progress
    assert from_plain(Candidate, parse_json(canonical_json(candidate))) == candidate


@given(values_of(State))
@settings(max_examples=30)
def test_states_come_back(state: State):
    data = state.canonical()
    assert State.from_canonical(data) == state
    assert State.from_canonical(data).canonical() == data


def test_every_event_and_command_has_a_kind():
    assert set(EVENT_KINDS.values()) == set(event.Event.__args__)
    assert [event_kind(made) for made in SAMPLES] == list(EVENT_KINDS)
    names = {encode_command(sample_of(kind))["command"] for kind in COMMAND_KINDS}
    assert len(names) == len(COMMAND_KINDS)


# -- the canonical form


@given(JSON)
def test_canonical_json_is_json_with_one_form(value: object):
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(parse_json(data)) == data
    assert b"\n" not in data


@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=6), st.randoms())
def test_the_order_of_keys_does_not_matter(value: dict[str, int], random: Random):
    items = list(value.items())
    random.shuffle(items)
    assert canonical_json(dict(items)) == canonical_json(value)


def test_the_form_is_what_it_was():
    said = AgentMessage(at=1_700_000_000_000_000_000, agent="slow", text='größer "x"\n')
    assert encode_event(said).decode() == (
        '{"agent":"slow","at":1700000000000000000,"event":"agent_message","schema":1,'
        '"text":"größer \\"x\\"\\n"}'
    )


@given(st.text(st.characters(categories=["Cs"]), min_size=1, max_size=1), st.text(max_size=4))
def test_bytes_that_are_no_utf8_do_not_break_the_journal(surrogate: str, rest: str):
    said = AgentMessage(at=1, agent="engine", text=f"x{surrogate}x{rest}")
    data = encode_event(said)
    data.decode("utf-8")
    assert decode_event(data) == said


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), {1, 2}, object()])
def test_what_has_no_json_form_is_refused(value: object):
    with pytest.raises(RecordError):
        canonical_json({"x": value})


# -- what is refused


def test_unknown_fields_are_refused():
    for made in SAMPLES:
        with pytest.raises(RecordError, match=f"{type(made).__name__} has no field 'zeal'"):
            decode_event(encoded({**plain_event(made), "zeal": 1}))


def test_missing_fields_are_named_unless_they_have_a_default():
    for made in SAMPLES:
        for item in fields(type(made)):
            plain = plain_event(made)
            del plain[item.name]
            if item.default is MISSING and item.default_factory is MISSING:
                with pytest.raises(RecordError, match=f"{item.name} is missing"):
                    decode_event(encoded(plain))
            else:
                assert isinstance(decode_event(encoded(plain)), type(made))


def test_wrong_types_are_named():
    for made in SAMPLES:
        for item in fields(type(made)):
            plain = plain_event(made)
            kept = plain[item.name]
            # no field takes both a text and a list of mixed things
            plain[item.name] = [{}, 1] if not isinstance(kept, list) else "text"
            with pytest.raises(RecordError, match=rf"{type(made).__name__}\.{item.name}"):
                decode_event(encoded(plain))


@pytest.mark.parametrize("at", [True, 1.0, "1", None])
def test_integers_are_integers(at: object):
    with pytest.raises(RecordError, match=r"AgentMessage\.at: expected an integer"):
        decode_event(
            encoded({"event": "agent_message", "schema": 1, "at": at, "agent": "", "text": ""})
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """A record for the forms of numbers."""

    share: float
    names: Mapping[str, tuple[int, ...]]
    agent: AgentName | None = None


def test_numbers_and_containers():
    made = from_plain(Sizes, {"share": 2, "names": {"a": [1, 2]}})
    assert made == Sizes(2.0, {"a": (1, 2)})
    assert isinstance(made.share, float)
    assert from_plain(Sizes, {"share": 1.5, "names": {}, "agent": "fast"}).agent is AgentName.FAST
    for wrong in (True, "1", 10**400, None):
        with pytest.raises(RecordError, match=r"Sizes\.share"):
            from_plain(Sizes, {"share": wrong, "names": {}})
    for wrong in ([], {"a": 1}, {"a": [1, "2"]}, {"a": [True]}):
        with pytest.raises(RecordError, match=r"Sizes\.names"):
            from_plain(Sizes, {"share": 1, "names": wrong})
    for wrong in ("nobody", 1, [], {}):
        with pytest.raises(RecordError, match=r"Sizes\.agent"):
            from_plain(Sizes, {"share": 1, "names": {}, "agent": wrong})


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"1", b"null", b"\xff", b'"x"', b"{}", b'{"event":"agent_message"}', b'{"schema":1}',
     b'{"event":1,"schema":1}', b'{"event":"agent_message","schema":"1"}',
     b'{"event":"agent_message","schema":0}', b'{"event":[],"schema":1}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_event_is_refused(data: bytes):
    with pytest.raises(RecordError):
        decode_event(data)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_numbers_that_are_not_finite_are_refused(number: bytes):
    with pytest.raises(RecordError):
        from_plain(Sizes, parse_json(b'{"share":' + number + b',"names":{}}'))


@given(st.binary(max_size=60) | JSON.map(encoded))
def test_any_bytes_are_an_event_or_a_record_error(data: bytes):
    with pytest.raises(RecordError):
        decode_event(data)


@given(JSON)
def test_any_json_is_a_command_or_a_record_error(plain: object):
    with pytest.raises(RecordError):
        decode_command(plain)


@pytest.mark.parametrize(
    ("plain", "what"),
    [
        ({"command": "accept"}, "Accept.candidate is missing"),
        ({"command": "delete"}, "unknown command 'delete'"),
        ({"command": ["accept"]}, "unknown command"),
        ({"command": "undo", "force": True}, "Undo has no field 'force'"),
        ({"command": "accept", "candidate": "c1", "sha": "a", "hunks": [0.5]}, r"Accept\.hunks"),
        ("accept", "is an object"),
    ],
)
def test_a_malformed_command_says_what_is_wrong(plain: object, what: str):
    with pytest.raises(RecordError, match=what):
        decode_command(plain)


def test_hunks_may_be_all_or_some_or_none():
    for hunks in (None, (), (0, 2)):
        made = Accept("c0001", "ab", hunks=hunks)
        assert decode_command(encode_command(made)) == made


# -- schemas


def test_an_event_of_a_newer_schema_says_so():
    for made in SAMPLES:
        plain = {**plain_event(made), "schema": SCHEMA + 1, "zeal": 1}
        with pytest.raises(NewerSchema, match="newer kerneltui"):
            decode_event(encoded(plain))


def test_a_kind_that_is_not_known_is_newer():
    with pytest.raises(NewerSchema, match="'reviewed' of schema 1"):
        decode_event(b'{"event":"reviewed","schema":1}')


@given(EVENTS)
def test_subjects_are_for_people(made: Event):
    assert event_subject(made).strip()
    assert to_plain(made) == to_plain(decode_event(encode_event(made)))


# -- fields that came later


@dataclass(frozen=True)
class _Grown:
    name: str
    remarks: tuple[str, ...] = field(default=(), metadata=LATER)
    extra: int | None = field(default=None, metadata=LATER)
    counts: Mapping[str, int] = field(default_factory=dict, metadata=LATER)


def test_a_later_field_is_written_only_when_it_says_something():
    assert canonical_json(_Grown("a")) == b'{"name":"a"}'
    assert canonical_json(_Grown("a", ("b",), 0)) == b'{"extra":0,"name":"a","remarks":["b"]}'
    assert canonical_json(_Grown("a", counts={"b": 1})) == b'{"counts":{"b":1},"name":"a"}'
    for made in (_Grown("a"), _Grown("a", ("b",), 3), _Grown("a", counts={"b": 1})):
        assert from_plain(_Grown, to_plain(made)) == made
