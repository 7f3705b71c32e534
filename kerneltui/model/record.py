"""Frozen dataclasses to canonical JSON and back.

One codec for events, commands, state and notes, so that the form of a record is its type and nothing
else. Canonical JSON has sorted keys, no spaces and no NaN; times are integers in nanoseconds.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from kerneltui.model.errors import RecordError

__all__ = ["LATER", "canonical_json", "from_plain", "parse_json", "to_plain"]

T = TypeVar("T")
_Decoder = Callable[[Any], Any]


LATER: Mapping[str, bool] = types.MappingProxyType({"later": True})
"""Metadata of a field that older sessions do not have: it is written only when it says something.

So the canonical form of what was recorded without it stays the same, byte for byte.
"""


def canonical_json(value: object) -> bytes:
    """Encodes plain data or a record as canonical JSON.

    Raises:
        RecordError: Something in it has no JSON form, such as a number that is not finite.
    """
    try:
        text = json.dumps(
            to_plain(value),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
    except ValueError as error:
        raise RecordError(f"no JSON form: {error}") from error
    # A lone surrogate, as from bytes that are no UTF-8, becomes `\udc80`: JSON's own escape for it.
    return text.encode("utf-8", "backslashreplace")


def parse_json(data: bytes) -> Any:
    """Decodes JSON.

    Raises:
        RecordError: The bytes are not JSON; NaN and Infinity are not.
    """
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def to_plain(value: object) -> Any:
    """Turns records, tuples, mappings and enums into plain JSON data."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if is_dataclass(value) and not isinstance(value, type):
        plain = {name: to_plain(getattr(value, name)) for name in _field_names(type(value))}
        for name, default in _later_fields(type(value)):
            if getattr(value, name) == default:
                del plain[name]
        return plain
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in cast("list[Any]", value)]
    raise RecordError(f"{type(value).__name__} has no JSON form")


def from_plain(kind: type[T], data: Any) -> T:
    """Builds a record of the given type from plain data.

    Fields with a default may be missing; unknown fields are refused.

    Raises:
        RecordError: The data does not have the form of the type.
    """
    return _decoder(kind)(data)


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@cache
def _later_fields(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (part.name, part.default if part.default_factory is MISSING else part.default_factory())
        for part in fields(kind)
        if part.metadata == LATER
    )


@cache
def _decoder(kind: Any) -> _Decoder:
    origin = get_origin(kind)
    args = get_args(kind)
    if kind is Any:
        return lambda data: data
    if origin in (Union, types.UnionType):
        return _union_decoder(args)
    if origin is tuple:
        item = _decoder(args[0])
        return lambda data: tuple(item(part) for part in _expect(data, list, "a list"))
    if origin in (dict, Mapping, typing.get_origin(Mapping[str, str])):
        item = _decoder(args[1])
        return lambda data: {
            str(key): item(part) for key, part in _expect(data, dict, "an object").items()
        }
    if isinstance(kind, type) and is_dataclass(kind):
        return _record_decoder(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum_decoder(kind)
    if kind is float:
        return _finite
    if kind is int:
        return lambda data: _expect(data, int, "an integer", no_bool=True)
    if kind in (str, bool):
        return lambda data: _expect(data, kind, f"a {kind.__name__}")
    if kind is type(None):
        return lambda data: _expect(data, type(None), "null")
    raise RecordError(f"{kind} has no JSON form")


def _expect(data: Any, kind: Any, what: str, *, no_bool: bool = False) -> Any:
    if not isinstance(data, kind) or (no_bool and isinstance(data, bool)):
        raise RecordError(f"expected {what}, found {type(data).__name__}")
    return data


def _finite(data: Any) -> float:
    number = _expect(data, (int, float), "a number", no_bool=True)
    try:
        number = float(number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RecordError("expected a finite number")
    return number


def _union_decoder(args: tuple[Any, ...]) -> _Decoder:
    decoders = [_decoder(arg) for arg in args if arg is not type(None)]
    optional = len(decoders) < len(args)

    def decode(data: Any) -> Any:
        if data is None and optional:
            return None
        problem: RecordError | None = None
        for decoder in decoders:
            try:
                return decoder(data)
            except RecordError as error:
                problem = error
        raise problem or RecordError("nothing fits")

    return decode


def _enum_decoder(kind: type[Enum]) -> _Decoder:
    def decode(data: Any) -> Any:
        try:
            return kind(data)
        except ValueError as error:
            raise RecordError(f"'{data}' is not a {kind.__name__}") from error

    return decode


def _record_decoder(kind: type) -> _Decoder:
    hints = get_type_hints(kind)
    known = {
        field.name: (
            hints[field.name],
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(kind)
    }

    def decode(data: Any) -> Any:
        _expect(data, dict, f"an object for {kind.__name__}")
        unknown = data.keys() - known.keys()
        if unknown:
            raise RecordError(f"{kind.__name__} has no field '{min(unknown)}'")
        values: dict[str, Any] = {}
        for name, (hint, required) in known.items():
            if name in data:
                try:
                    values[name] = _decoder(hint)(data[name])
                except RecordError as error:
                    raise RecordError(f"{kind.__name__}.{name}: {error}") from error
            elif required:
                raise RecordError(f"{kind.__name__}.{name} is missing")
        return kind(**values)

    return decode
