from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_strategies import DIRECTIVES

from kerneltui.model.directive import FIELDS, Backend, Directive, Issuer, Placement, Sync
from kerneltui.model.errors import RecordError

PLAIN = {
    "backend": "lsa",
    "placement": "fused",
    "sync": "flag_per_chunk",
    "issuer": "thread",
    "chunk_bytes": "65536",
}


@given(DIRECTIVES)
def test_a_directive_comes_back_from_its_text(directive: Directive):
    items = directive.items()
    assert Directive.from_items(items) == directive
    assert Directive.from_items(dict(reversed(items.items()))) == directive
    assert tuple(items)[: len(FIELDS)] == FIELDS


def test_further_fields_are_kept_in_order_of_their_names():
    directive = Directive.from_items({**PLAIN, "swizzle": "8", "cluster": "2"})
    assert directive.extra == {"swizzle": "8", "cluster": "2"}
    assert list(directive.items())[-2:] == ["cluster", "swizzle"]


@given(st.sampled_from(FIELDS))
def test_a_missing_field_is_named(name: str):
    items = {key: value for key, value in PLAIN.items() if key != name}
    with pytest.raises(RecordError, match=f"'{name}' is missing"):
        Directive.from_items(items)


@given(st.sampled_from(FIELDS), st.text(max_size=5))
def test_a_wrong_value_is_refused(name: str, value: str):
    with pytest.raises(RecordError):
        Directive.from_items({**PLAIN, name: f"{value}?"})


def test_sizes_are_not_negative_and_fields_are_not_given_twice():
    with pytest.raises(RecordError, match="chunk_bytes is -1"):
        Directive.from_items({**PLAIN, "chunk_bytes": "-1"})
    with pytest.raises(RecordError, match="'sync' given twice"):
        Directive(Backend.LSA, Placement.FUSED, Sync.WORLD, Issuer.CTA, 0, {"sync": "none"})


def test_the_summary_is_one_line():
    assert Directive.from_items(PLAIN).summary() == "lsa thread fused flag_per_chunk 65536 B"
    whole = Directive.from_items({**PLAIN, "chunk_bytes": "0"})
    assert whole.summary() == "lsa thread fused flag_per_chunk whole shard"
