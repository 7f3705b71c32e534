"""Declarations of Python kernels: the same comments, with `#`, on assignments."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerneltui.model.errors import DefinitionError
from kerneltui.model.kernel import Language, parse_kernel

ROOT = Path(__file__).parents[2]
SMALL = '''\
"""A kernel."""
# kerneltui: directive backend host
# kerneltui: directive issuer thread
# kerneltui: directive placement from PLACEMENT
# kerneltui: directive sync none
# kerneltui: directive chunk_bytes = BLOCK * 2
import torch
# kerneltui: tunable BLOCK in 64 128 if BLOCK <= M
BLOCK: tl.constexpr = 128  # rows of a tile
# kerneltui: tunable PLACEMENT in fused sequential
PLACEMENT = "sequential"
# kerneltui: runtime SPLIT in 1 2 4 default 2
def run(context, state, set, epoch):
    # kerneltui: evolve begin body
    return BLOCK
    # kerneltui: evolve end
'''


def test_the_name_of_a_file_says_its_language():
    assert parse_kernel(SMALL, "kernel.py").language is Language.PYTHON
    assert Language.of("kernel.cu") is Language.of("kernel.cpp") is Language.CPP


def test_all_that_a_python_kernel_declares():
    kernel = parse_kernel(SMALL, "kernel.py")
    assert kernel.configuration == {"BLOCK": 128, "PLACEMENT": "sequential", "SPLIT": 2}
    assert kernel.runtime == {"SPLIT": 2}
    assert kernel.directive({"M": 128, "RANKS": 1}).chunk_bytes == 256
    (region,) = kernel.regions
    assert SMALL.split("\n")[region.first - 1 : region.last] == ["    return BLOCK"]


def test_other_values_keep_the_rest_of_the_line():
    kernel = parse_kernel(SMALL, "kernel.py")
    text = kernel.render({"BLOCK": 64, "PLACEMENT": "fused", "SPLIT": 4})
    assert "BLOCK: tl.constexpr = 64  # rows of a tile" in text
    assert 'PLACEMENT = "fused"' in text
    assert "default 4" in text
    again = parse_kernel(text, "kernel.py")
    assert again.configuration == {"BLOCK": 64, "PLACEMENT": "fused", "SPLIT": 4}
    assert again.frozen_text() == kernel.frozen_text()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('PLACEMENT = "sequential"', "#define PLACEMENT fused", "must be 'PLACEMENT = …'"),
        ("= 128  # rows", "= 96  # rows", "BLOCK is 96, not one of its values"),
        ("BLOCK: tl.constexpr = 128", "BLOCK = min(64, 128)", "must be 'BLOCK = …'"),
    ],
)
def test_a_tunable_is_an_assignment_of_one_of_its_values(old, new, words):
    with pytest.raises(DefinitionError, match=words):
        parse_kernel(SMALL.replace(old, new), "kernel.py")


def test_comments_and_spaces_make_no_other_program():
    kernel = parse_kernel(SMALL, "kernel.py")
    same = SMALL.replace("import torch\n", "import torch   # arithmetic\n\n\n")
    assert parse_kernel(same, "kernel.py").token_hash() == kernel.token_hash()
    other = SMALL.replace("    return BLOCK\n", "    return BLOCK + 1\n")
    assert parse_kernel(other, "kernel.py").token_hash() != kernel.token_hash()


def test_an_indent_makes_another_program():
    body = "if BLOCK:\n    a = 1\nb = 2\n"
    inside = "if BLOCK:\n    a = 1\n    b = 2\n"
    one, two = (parse_kernel(text, "kernel.py").token_hash() for text in (body, inside))
    assert one != two


def test_what_is_no_python_has_a_hash_all_the_same():
    broken = [parse_kernel(f"def run(:\n  '{mark}", "kernel.py").token_hash() for mark in "ab"]
    assert broken[0] != broken[1]


@pytest.mark.parametrize("file", sorted(ROOT.glob("kernels/*/*.py")), ids=lambda file: file.name)
def test_the_kernels_of_the_library_are_declared(file):
    kernel = parse_kernel(file.read_text(encoding="utf-8"), file.name)
    assert kernel.directive({"M": 4096, "N": 4096, "K": 4096, "RANKS": 2})
    for tunable in kernel.tunables:
        for value in tunable.values:
            text = kernel.render({tunable.name: value})
            assert parse_kernel(text, file.name).configuration[tunable.name] == value
            compile(text, file.name, "exec")
