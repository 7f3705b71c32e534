"""Hypothesis strategies for the records of the model, made from their types."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from kerneltui.model.directive import FIELDS, Backend, Directive, Issuer, Placement, Sync

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORDS = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**70), 2**70)

DIRECTIVES = st.builds(
    Directive,
    backend=st.sampled_from(Backend),
    placement=st.sampled_from(Placement),
    sync=st.sampled_from(Sync),
    issuer=st.sampled_from(Issuer),
    chunk_bytes=st.integers(0, 2**40),
    extra=st.dictionaries(WORDS.filter(lambda word: word not in FIELDS), TEXT, max_size=3),
)


@cache
def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Returns a strategy for any type that a record may have as a field."""
    origin, args = get_origin(kind), get_args(kind)
    plain = {int: INTEGERS, float: FINITE, bool: st.booleans(), str: TEXT, type(None): st.none()}
    if kind in plain:
        return plain[kind]
    if kind is Directive:
        return DIRECTIVES
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values_of, args))
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    if origin in (dict, Mapping):
        return st.dictionaries(TEXT, values_of(args[1]), max_size=3)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return st.builds(kind, **{f.name: values_of(hints[f.name]) for f in fields(kind)})
    raise TypeError(f"no strategy for {kind}")


def sample_of(kind: Any) -> Any:
    """Returns one plain value of a type: a record with all its fields filled."""
    origin, args = get_origin(kind), get_args(kind)
    plain = {int: 7, float: 0.5, bool: True, str: "text", type(None): None}
    if kind in plain:
        return plain[kind]
    if origin in (Union, types.UnionType):
        return sample_of(next(arg for arg in args if arg is not type(None)))
    if origin is tuple:
        return (sample_of(args[0]),)
    if origin in (dict, Mapping):
        return {"key": sample_of(args[1])}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    hints = get_type_hints(kind)
    return kind(**{field.name: sample_of(hints[field.name]) for field in fields(kind)})
