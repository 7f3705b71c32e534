"""The definition of a workload as it is written: `workloads/<name>/workload.toml`, read and checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path

from kerneltui.model.errors import DefinitionError, ExpressionError
from kerneltui.model.expression import Expression
from kerneltui.model.grid import MOST_COMBINATIONS, combinations, sampled
from kerneltui.model.toml_table import TableReader
from kerneltui.model.workload import (
    DTYPE_BYTES,
    Limit,
    Role,
    Shape,
    TargetSpec,
    Tensor,
    Tolerance,
    Workload,
)

__all__ = ["load_workload", "parse_workload"]

SCHEMA = 1
_TAGS = ("tune", "test", "hidden", "bench")
# Keys of a shape that mean something else, and names that expressions know beside the dimensions.
_NOT_DIMENSIONS = ("RANKS", "BYTES", "name", "ranks", "tags", "targets")
_FOLDER = re.compile(r"\w[\w.-]*")


def load_workload(folder: Path, target: str | None = None) -> Workload:
    """Reads and validates `workload.toml` of a folder.

    Args:
        folder: Where the file is.
        target: Whose dtypes and shapes; by default those of the first target in the file.

    Raises:
        DefinitionError: The file is missing or says something that it must not, or has no such target.
    """
    file = folder / "workload.toml"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        problem = "there is none; name a workload, such as those in workloads/"
        raise DefinitionError(str(folder), file.name, problem) from error
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise DefinitionError(str(file), "file", f"cannot be read ({problem})") from error
    return parse_workload(text, folder, target)


def parse_workload(text: str, folder: Path, target: str | None = None) -> Workload:
    """Validates the text of a `workload.toml`, for one of its targets; see `load_workload`.

    Raises:
        DefinitionError: Names file, key and what was expected.
    """
    file = str(folder / "workload.toml")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DefinitionError(file, "TOML", str(error)) from error
    reader = TableReader(file, "", table)
    schema = reader.integer("schema")
    if schema != SCHEMA:
        raise DefinitionError(file, "schema", f"is {schema}, this kerneltui reads {SCHEMA}")
    dimensions = reader.words("dimensions")
    _check_dimensions(reader, dimensions)
    dtype = reader.choice("dtype", DTYPE_BYTES)
    parts = reader.tables("target")
    targets = {name: _target(part, name, dtype) for name, part in parts.items()}
    if not targets:
        raise DefinitionError(file, "target", "expected at least one [target.NAME] table")
    spec = targets.get(target or next(iter(targets)))
    if spec is None:
        known = ", ".join(targets)
        raise DefinitionError(file, "target", f"there is no [target.{target}]; known: {known}")
    listed = [_shape(part, dimensions, targets, spec) for part in reader.list_of_tables("shape")]
    shapes = tuple(shape for shape in listed if shape is not None)
    _check_single(file, "shape", [shape.name for shape in shapes])
    for part in reader.list_of_tables("grid", default=()):
        shapes = _joined(shapes, _grid(part, dimensions, targets, spec))
    if not any("tune" in shape.tags for shape in shapes):
        what = f"expected at least one shape with the tag 'tune' for target {spec.name}"
        raise DefinitionError(file, "shape", what)
    tensors = tuple(_tensor(part, spec.dtype) for part in reader.list_of_tables("tensor"))
    _check_single(file, "tensor", [tensor.name for tensor in tensors])
    if not any(tensor.role in (Role.OUTPUT, Role.INOUT) for tensor in tensors):
        raise DefinitionError(file, "tensor", "expected at least one with role 'output'")
    name = folder.resolve().name
    workload = Workload(
        name=name,
        folder=folder,
        target=spec.name,
        title=reader.word("title"),
        dimensions=dimensions,
        dtype=spec.dtype,
        accumulate=reader.choice("accumulate", DTYPE_BYTES),
        targets=targets,
        shapes=shapes,
        tensors=tensors,
        tolerance=_tolerance(reader.table("tolerance")),
        limit=_limit(reader.table("limit")),
        comparison=reader.choice("comparison", ("elementwise",), default="elementwise"),
        kernel_folder=_kernel_folder(reader, name),
        text=text,
    )
    reader.finish()
    _check_expressions(workload, file)
    return workload


def _kernel_folder(reader: TableReader, own: str) -> str:
    name = reader.word("kernels", default=own)
    if name != own and not _FOLDER.fullmatch(name):
        what = f"expected the name of a folder in kernels/, such as gemm, found '{name}'"
        raise reader.error("kernels", what)
    return name


def _check_dimensions(reader: TableReader, dimensions: tuple[str, ...]) -> None:
    if not dimensions:
        raise reader.error("dimensions", "expected at least one name")
    for name in dimensions:
        if not name.isidentifier() or name in _NOT_DIMENSIONS or dimensions.count(name) > 1:
            what = f"expected a name of its own, such as M, found '{name}'"
            raise reader.error("dimensions", what)


def _check_single(file: str, key: str, names: list[str]) -> None:
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise DefinitionError(file, key, f"{doubled[0]} is listed twice")


def _check_expressions(workload: Workload, file: str) -> None:
    """Evaluates every expression once, so that a wrong name is found now and not in a session."""
    for tensor in workload.tensors:
        if tensor.shard is not None and tensor.shard >= len(tensor.shape):
            raise DefinitionError(file, f"tensor {tensor.name}.shard", "no such axis")
    for shape in workload.shapes:
        for key, expression, least in _expressions(workload):
            try:
                value = expression.number(shape.values)
            except ExpressionError as error:
                raise DefinitionError(file, key, f"{error} (shape {shape.name})") from error
            if value < least:
                problem = f"is {value:g} for shape {shape.name}, expected at least {least}"
                raise DefinitionError(file, key, problem)


def _expressions(workload: Workload) -> Iterator[tuple[str, Expression, int]]:
    """Yields every expression with its key and the least value that makes sense."""
    for tensor in workload.tensors:
        for axis in tensor.shape:
            yield f"tensor {tensor.name}.shape", axis, 1
    yield "limit.flops", workload.limit.flops, 0
    yield "limit.memory_bytes", workload.limit.memory_bytes, 0
    yield "limit.link_bytes", workload.limit.link_bytes, 0
    yield "tolerance.reduction", workload.tolerance.reduction, 1


def _target(reader: TableReader, name: str, dtype: str) -> TargetSpec:
    spec = TargetSpec(
        name=name,
        ranks=reader.integer("ranks", minimum=1),
        seed=reader.word("seed"),
        library=reader.words("library", default=()),
        baselines=reader.words("baselines"),
        dtype=reader.choice("dtype", DTYPE_BYTES, default=dtype),
    )
    reader.finish()
    return spec


def _shape(
    reader: TableReader,
    dimensions: tuple[str, ...],
    targets: Mapping[str, TargetSpec],
    spec: TargetSpec,
) -> Shape | None:
    """Reads a shape; None if it is for other targets only."""
    values = {name: reader.integer(name, minimum=1) for name in dimensions}
    tags = _tags(reader)
    wanted = _wanted(reader, targets)
    ranks = reader.integer("ranks", minimum=1, default=spec.ranks)
    name = reader.word("name", default=_name(values, ranks, spec))
    reader.finish()
    if spec.name not in wanted:
        return None
    return Shape(name, values, tags, ranks, DTYPE_BYTES[spec.dtype])


def _grid(
    reader: TableReader,
    dimensions: tuple[str, ...],
    targets: Mapping[str, TargetSpec],
    spec: TargetSpec,
) -> tuple[Shape, ...]:
    """Reads a grid of shapes; nothing if it is for other targets only."""
    values = {name: reader.integers(name, minimum=1) for name in dimensions}
    total = prod(len(row) for row in values.values())
    if total > MOST_COMBINATIONS:
        raise reader.error(dimensions[0], f"{total} combinations, at most {MOST_COMBINATIONS}")
    sample = reader.integer("sample", minimum=1, default=total)
    if sample > total:
        raise reader.error("sample", f"is {sample}, but there are {total} combinations")
    tags = _tags(reader)
    wanted = _wanted(reader, targets)
    ranks = reader.integer("ranks", minimum=1, default=spec.ranks)
    reader.finish()
    if spec.name not in wanted:
        return ()
    rows = combinations(values)
    if sample < total:
        rows = sampled(rows, sample)
    return tuple(
        Shape(_name(row, ranks, spec), row, tags, ranks, DTYPE_BYTES[spec.dtype]) for row in rows
    )


def _joined(shapes: tuple[Shape, ...], more: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Adds shapes; one that is there already gets the further tags."""
    found = {(shape.ranks, *shape.dimensions.values()): shape for shape in shapes}
    for shape in more:
        key = (shape.ranks, *shape.dimensions.values())
        known = found.get(key, shape)
        found[key] = replace(known, tags=tuple(dict.fromkeys((*known.tags, *shape.tags))))
    return tuple(found.values())


def _tags(reader: TableReader) -> tuple[str, ...]:
    tags = reader.words("tags")
    for tag in tags:
        if tag not in _TAGS:
            raise reader.error("tags", f"'{tag}' is not one of {', '.join(_TAGS)}")
    return tags


def _wanted(reader: TableReader, targets: Mapping[str, TargetSpec]) -> tuple[str, ...]:
    wanted = reader.words("targets", default=tuple(targets))
    for name in wanted:
        if name not in targets:
            raise reader.error("targets", f"'{name}' is not one of {', '.join(targets)}")
    return wanted


def _name(values: Mapping[str, int], ranks: int, spec: TargetSpec) -> str:
    name = "x".join(str(value) for value in values.values())
    return name if ranks == spec.ranks else f"{name} P{ranks}"


def _tensor(reader: TableReader, dtype: str) -> Tensor:
    tensor = Tensor(
        name=reader.word("name"),
        dtype=reader.choice("dtype", DTYPE_BYTES, default=dtype),
        shape=tuple(reader.expression_text(axis, "shape") for axis in reader.words("shape")),
        role=Role(reader.choice("role", [role.value for role in Role])),
        shard=reader.optional_integer("shard", minimum=0),
        symmetric=reader.flag("symmetric"),
        packed=reader.flag("packed"),
        distribution=reader.choice("distribution", ("normal", "uniform"), default="normal"),
    )
    reader.finish()
    return tensor


def _tolerance(reader: TableReader) -> Tolerance:
    tolerance = Tolerance(
        factor=reader.number("factor"),
        reduction=reader.expression("reduction"),
        library=reader.number("library"),
    )
    reader.finish()
    return tolerance


def _limit(reader: TableReader) -> Limit:
    limit = Limit(
        flops=reader.expression("flops"),
        memory_bytes=reader.expression("memory_bytes"),
        link_bytes=reader.expression("link_bytes"),
        tiles=reader.optional_expression("tiles"),
    )
    reader.finish()
    return limit
