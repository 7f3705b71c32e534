"""What a module offers stands in its `__all__`, sorted, and nothing else is public there."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kerneltui"
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(file): ast.parse(file.read_text(encoding="utf-8")) for file in FILES}


def exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return ast.literal_eval(value)
    return None


def is_command(node: ast.stmt) -> bool:
    """Whether a function is a command of the command line: it is reached through its group."""
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(part).startswith(("cli.command", "click.group")) for part in decorators)


def made(tree: ast.Module) -> set[str]:
    """Public classes and functions that the module itself makes."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = {n.name for n in tree.body if isinstance(n, kinds) and not is_command(n)}
    return {name for name in found if not name.startswith("_")}


def bound(tree: ast.Module) -> set[str]:
    """All names at the top of a module, imported ones too."""
    found = {name for node in tree.body for name in _names(node)}
    return found | made(tree)


def _names(node: ast.stmt) -> list[str]:
    match node:
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.ImportFrom(names=names) | ast.Import(names=names):
            return [alias.asname or alias.name for alias in names]
        case _:
            return []


@pytest.mark.parametrize("module", MODULES)
def test_all_is_what_the_module_makes(module: str):
    tree = MODULES[module]
    names = exported(tree)
    if names is None:
        # the root of a package and an entry point may offer nothing
        assert made(tree) <= {"main"} if module.endswith("__main__") else not made(tree)
        return
    assert len(set(names)) == len(names)
    assert made(tree) <= set(names), f"not in __all__: {sorted(made(tree) - set(names))}"
    missing = set(names) - bound(tree)
    if missing and any(getattr(node, "name", "") == "__getattr__" for node in tree.body):
        loaded = importlib.import_module(module)
        missing = {name for name in missing if not hasattr(loaded, name)}
    assert not missing, f"in __all__ but not there: {sorted(missing)}"


def test_all_is_sorted():
    ruff = [sys.executable, "-m", "ruff", "check", "--no-cache", "--isolated", "--select", "RUF022"]
    result = subprocess.run([*ruff, str(PACKAGE)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_the_public_names_of_the_package_need_no_heavy_import():
    code = (
        "import kerneltui, sys; print(sorted(m for m in sys.modules if m.startswith('kerneltui')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "['kerneltui']"
