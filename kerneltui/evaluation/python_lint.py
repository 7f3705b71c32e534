"""What a Python kernel must not say, found in its text before anything of it runs.

A Python kernel shares an interpreter with the loop that calls it, so more is asked of its text than of a
C++ file: it imports what it computes with, uses it by its name, and leaves everything else alone.

    Y01  it is no kernel: no `run(context, state, set, epoch)`
    Y02  an import of something else
    Y03  a built-in that reaches beyond what a kernel is given
    Y04  a private name, or a way to frames, files and other memory
    Y05  a name of a package that is not a kernel's business (files, processes, modes, hooks)
    Y06  a module used as a value, so that nobody sees what is taken from it
    Y07  an attribute of a module or of a class of it changed

For what the machine's policy forbids see `python_policy`. A text can hide what it does; the sandbox, the
guard of the rank and the judge do not depend on it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from kerneltui.evaluation.python_rules import (
    ALLOWED_BELOW,
    BUILTINS,
    DENIED_ATTRIBUTES,
    DENIED_BELOW,
    METHODS,
    MODULES,
    PACKAGES,
    ROUNDABOUT,
    STANDARD,
)
from kerneltui.targets.cuda.finding import Finding, Level

__all__ = ["lint_python", "python_labels"]

_RUN = 4
_WHY = {
    "torch.compile": "compile what you need with Triton or CuPy, in setup",
    "triton.autotune": "it times inside run; declare tunables, and the search tries their values",
    "torch.backends": "how torch computes is set by the harness",
    "torch.ops": "use the function of torch that it stands behind",
}
_WAITS = {"synchronize", "item", "tolist", "cpu", "nonzero"}


def lint_python(source: str) -> tuple[Finding, ...]:
    """Finds what is wrong in a Python kernel, in the order of its lines."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 0) or 0
        return (Finding("Y01", Level.ERROR, line, f"this is no Python: {error}"),)
    found = [*_no_kernel(tree), *_Reader(tree).findings()]
    return tuple(sorted(dict.fromkeys(found), key=lambda f: (f.line, f.rule, f.text)))


def python_labels(source: str) -> list[str]:
    """Labels what a Python kernel uses beside arithmetic."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return []
    labels: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            labels.add("static state")
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            labels |= {name.partition(".")[0] for name in names} & {"torch", "triton", "cupy"}
        if isinstance(node, ast.FunctionDef) and node.name == "run":
            waits = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
            labels |= {"waits for the device"} if waits & _WAITS else set()
    return sorted(labels)


def _no_kernel(tree: ast.Module) -> Iterator[Finding]:
    runs = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run"]
    if not runs:
        text = "there is no function run(context, state, set, epoch)"
        yield Finding("Y01", Level.ERROR, 0, text)
    for run in runs:
        if len(run.args.posonlyargs) + len(run.args.args) != _RUN or run.args.vararg:
            text = "run takes context, state, set and epoch"
            yield Finding("Y01", Level.ERROR, run.lineno, text)


class _Reader:
    """Walks over a tree and remembers what its names mean."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._modules: dict[str, str] = {}
        self._values: set[str] = set()  # names that come from packages and are no modules
        self._bases: set[int] = set()

    def findings(self) -> Iterator[Finding]:
        """What is wrong."""
        for node in ast.walk(self._tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from self._import(node)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                self._bases.add(id(node.value))
            elif isinstance(node, ast.Call) and _calls(node, "hasattr"):
                self._bases |= {id(argument) for argument in node.args[:1]}
        for node in ast.walk(self._tree):
            yield from self._node(node)

    def _node(self, node: ast.AST) -> Iterator[Finding]:
        if isinstance(node, ast.Name):
            yield from self._name(node)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if _dunder(node.name) and node.name not in METHODS:
                yield _error("Y04", node, f"{node.name} is not a kernel's to define")
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            yield from self._change(node)
        elif isinstance(node, ast.keyword) and node.arg and _dunder(node.arg):
            yield _error("Y04", node.value, f"{node.arg} is private")

    def _import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Finding]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._path(node, alias.name)
                if alias.asname:
                    self._modules[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    self._modules[top] = top
            return
        module = node.module or ""
        if node.level:
            yield _error("Y02", node, "a kernel is one file: there is nothing to import beside it")
            return
        for alias in node.names:
            if alias.name == "*":
                yield _error("Y02", node, f"import the names that you use from {module}, not *")
                continue
            path = f"{module}.{alias.name}"
            yield from self._path(node, path)
            known = any(path == p or p.startswith(f"{path}.") for p in MODULES)
            (self._modules.__setitem__ if known else self._value)(alias.asname or alias.name, path)

    def _value(self, name: str, _: str) -> None:
        self._values.add(name)

    def _path(self, node: ast.AST, path: str) -> Iterator[Finding]:
        """A dotted name that begins with a package."""
        parts = path.split(".")
        if parts[0] not in PACKAGES:
            allowed = ", ".join(sorted(PACKAGES - {"__future__"}))
            yield _error(
                "Y02", node, f"a kernel does not import {parts[0]}; it may import {allowed}"
            )
            return
        for end in range(1, len(parts)):
            above, name = ".".join(parts[:end]), parts[end]
            here = f"{above}.{name}"
            why = f": {_WHY[here]}" if here in _WHY else ""
            if above in ALLOWED_BELOW and name not in ALLOWED_BELOW[above]:
                yield _error("Y05", node, f"{here} is not for kernels{why}")
                return
            if here in ALLOWED_BELOW:
                continue
            # What is denied of a package is denied of its parts: they have it, too.
            denied = any(
                name in names
                for place, names in DENIED_BELOW.items()
                if above == place or above.startswith(f"{place}.")
            )
            setter = parts[0] == "torch" and name.startswith("set_")
            if denied or setter or name in STANDARD or name in ROUNDABOUT:
                yield _error("Y05", node, f"{here} is not for kernels{why}")
                return
            if name.startswith("_"):
                return  # found as an attribute, or refused here
        if any(part.startswith("_") for part in parts[1:]):
            yield _error("Y04", node, f"{path} is private")

    def _name(self, node: ast.Name) -> Iterator[Finding]:
        if node.id in BUILTINS or (_dunder(node.id) and node.id != "__name__"):
            yield _error("Y03", node, f"{node.id} is not for kernels")
        elif (
            node.id in self._modules
            and id(node) not in self._bases
            and isinstance(node.ctx, ast.Load)
        ):
            text = f"use {node.id} by what you need of it: {node.id}.NAME"
            yield _error("Y06", node, text)

    def _attribute(self, node: ast.Attribute) -> Iterator[Finding]:
        if node.attr in DENIED_ATTRIBUTES:
            yield _error("Y04", node, f".{node.attr} is not for kernels")
        elif node.attr.startswith("_"):
            own = isinstance(node.value, ast.Name) and node.value.id == "self"
            if not own or _dunder(node.attr):
                yield _error("Y04", node, f".{node.attr} is private")
        chain = _chain(node)
        if chain and chain[0] in self._modules:
            path = ".".join([self._modules[chain[0]], *chain[1:]])
            yield from self._path(node, path)
            if path in MODULES and id(node) not in self._inner():
                yield _error("Y06", node, f"use {path} by what you need of it")

    def _inner(self) -> set[int]:
        """Attributes of which another attribute is taken."""
        if not hasattr(self, "_inner_nodes"):
            self._inner_nodes = {
                id(node.value) for node in ast.walk(self._tree) if isinstance(node, ast.Attribute)
            }
        return self._inner_nodes

    def _change(
        self, node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete
    ) -> Iterator[Finding]:
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
        for target in targets:
            for part in _changed(target):
                chain = _chain(part)
                root = chain[0] if chain else ""
                stored = isinstance(part.ctx, (ast.Store, ast.Del))  # what it holds, if not
                foreign = root in self._modules or root in self._values
                if foreign or (root == "context" and stored):
                    text = f"{'.'.join(chain)} is changed; a kernel changes what is its own"
                    yield _error("Y07", part, text)


def _changed(target: ast.expr) -> Iterator[ast.Attribute]:
    """The attributes that an assignment changes, or whose elements it changes."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _changed(part)
    elif isinstance(target, (ast.Starred, ast.Subscript)):
        yield from _changed(target.value)
    elif isinstance(target, ast.Attribute):
        yield target


def _chain(node: ast.expr) -> list[str]:
    """A dotted name as its parts, or nothing if it does not begin with a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return []
    return [node.id, *reversed(parts)]


def _calls(node: ast.Call, name: str) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == name


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _error(rule: str, node: ast.AST, text: str) -> Finding:
    return Finding(rule, Level.ERROR, getattr(node, "lineno", 0), text)
