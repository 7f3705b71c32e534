"""What the machine's policy forbids, looked for in a Python kernel.

It is looked for in names, and in every text as if it were CUDA or PTX. Triton's PTX is looked at again
when it is assembled. CuPy compiles within the rank, where nobody looks at it, so what it is given must be
texts that can be read here: literals, sums of them, and names that are bound to such a thing once.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from kerneltui.targets.cuda.finding import Finding, Level
from kerneltui.targets.cuda.policy import MachinePolicy

__all__ = ["check_policy"]

_COMPILING = frozenset({"ElementwiseKernel", "RawKernel", "RawModule", "ReductionKernel"})
"""Classes of CuPy that compile texts."""

_NO_CODE = frozenset({"no_return", "options", "reduce_dims", "return_tuple"})
"""Keywords that are no code. All else that ElementwiseKernel and ReductionKernel get becomes part of it."""

_LONGEST = 1 << 18
"""Characters of a text that is put together; what is longer counts as one that cannot be read."""

_Names = dict[str, tuple[str, bool]]
"""What names mean: their text, and whether all of it is known."""


def check_policy(source: str, policy: MachinePolicy) -> tuple[Finding, ...]:
    """Finds what the machine's policy forbids in a text that is known to be Python."""
    tree = ast.parse(source)
    names = _bound_once(tree)
    found = [*_against_policy(tree, policy, names)]
    if policy.features:
        found += _compiled_texts(tree, names)
    return tuple(sorted(dict.fromkeys(found), key=lambda f: (f.line, f.rule, f.text)))


def _against_policy(tree: ast.Module, policy: MachinePolicy, known: _Names) -> Iterator[Finding]:
    """Names of the text, and every text in it as if it were CUDA: it may become that."""
    names: dict[int, set[str]] = {}
    prose = {id(text) for text in _docstrings(tree)}
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Attribute):
            names.setdefault(line, set()).add(node.attr)
        elif isinstance(node, ast.Name):
            names.setdefault(line, set()).add(node.id)
        elif isinstance(node, ast.keyword) and node.arg:
            names.setdefault(node.value.lineno, set()).add(node.arg)
        elif isinstance(node, ast.alias):
            names.setdefault(line, set()).update(node.name.split("."))
        text = "" if isinstance(node, ast.Name) else _folded(node, known)[0]
        if text and id(node) not in prose:
            found = (*policy.check_source(text), *policy.check_ptx(text))
            for finding in (*found, *policy.check_source(json.dumps(text))):
                yield replace(finding, line=line + max(0, finding.line - 1))
    for line, words in names.items():
        for finding in policy.check_source(" ".join(sorted(words))):
            yield replace(finding, line=line)


def _compiled_texts(tree: ast.Module, known: _Names) -> Iterator[Finding]:
    """Texts that CuPy would compile, and nobody can read before."""
    imported = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in _COMPILING
    }
    called: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _compiling(node.func, imported)):
            called.add(id(node.func))
            what = _unread(node, name, known)
            if what:
                yield Finding("P03", Level.BLOCK, node.lineno, f"cupy.{name} {what}")
    for node in ast.walk(tree):
        name = _compiling(node, imported)
        if name and id(node) not in called:
            text = f"cupy.{name} is used other than in a call, so what it compiles cannot be read; call it"
            yield Finding("P03", Level.BLOCK, getattr(node, "lineno", 0), text)


def _unread(call: ast.Call, name: str, known: _Names) -> str:
    """What cannot be read of a call; empty if all can be."""
    words = {keyword.arg: keyword.value for keyword in call.keywords}
    if "path" in words:
        return "loads code from a file, which cannot be looked at; give it the code as a text"
    if name.startswith("Raw"):
        given = [*call.args[:1], *(v for word, v in words.items() if word in ("code", None))]
    else:
        given = [*call.args, *(v for word, v in words.items() if word not in _NO_CODE)]
    if all(_folded(value, known)[1] for value in given):
        return ""
    return (
        "compiles a text that cannot be read before it runs; write it as a literal, and give it "
        'values by options=("-DNAME=4",)'
    )


def _compiling(node: ast.AST, imported: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr if node.attr in _COMPILING else ""
    return imported.get(node.id, "") if isinstance(node, ast.Name) else ""


def _bound_once(tree: ast.Module) -> _Names:
    """Names that mean the same text wherever they stand."""
    bound: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            name = "" if isinstance(node.ctx, ast.Load) else node.id
        elif isinstance(node, ast.alias):
            name = node.asname or node.name
        else:
            fields = ("name", "rest", "arg") if not isinstance(node, ast.keyword) else ()
            given = (getattr(node, field, None) for field in fields)
            name = next((one for one in given if isinstance(one, str)), "")
        bound[name] += 1
    found: _Names = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name) and bound[target.id] == 1:
            found[target.id] = _folded(value, found)
    return found


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _folded(node: ast.AST, known: _Names) -> tuple[str, bool]:
    """The text that an expression makes, as far as it can be read, and whether all of it can."""
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str):
            return node.value, True
        plain = isinstance(node.value, (int, float, bool)) or node.value is None
        return "", plain
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_folded(node.left, known), _folded(node.right, known)]
    elif isinstance(node, ast.JoinedStr):
        parts = [_folded(part, known) for part in node.values]
    elif isinstance(node, ast.FormattedValue):
        text, whole = _folded(node.value, known)
        return text, whole and node.format_spec is None
    elif isinstance(node, ast.Name):
        return known.get(node.id, ("", False))
    else:
        return "", False
    text = "".join(text for text, _ in parts)
    return (text, all(whole for _, whole in parts)) if len(text) <= _LONGEST else ("", False)
