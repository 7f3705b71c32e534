from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.model.errors import DefinitionError
from kerneltui.model.expression import parse_expression
from kerneltui.model.workload import Role, Shape, Tensor, Workload
from kerneltui.model.workload_file import load_workload, parse_workload

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "workloads" / "gemm_allgather"
TEXT = (FOLDER / "workload.toml").read_text(encoding="utf-8")

SMALL = """\
schema = 1
title = "Rows"
dimensions = ["M", "N"]
dtype = "float32"
accumulate = "float64"

[target.cpu]
ranks = 2
seed = "host.cpp"
library = ["window.cpp"]
baselines = ["torch_gloo"]

[tolerance]
factor = 8.0
reduction = "N"
library = 4

[limit]
flops = "2 * M * N"
memory_bytes = "4 * M * N"
link_bytes = 0

[[tensor]]
name = "A"
dtype = "float32"
shape = ["M", "N"]
role = "input"
shard = 0

[[tensor]]
name = "C"
dtype = "float32"
shape = ["M", "N"]
role = "output"
symmetric = true

[[shape]]
M = 64
N = 32
tags = ["tune"]

[[shape]]
M = 7
N = 5
ranks = 3
tags = ["test", "hidden"]
"""


def parsed(text: str) -> Workload:
    return parse_workload(text, Path("work") / "rows")


# -- one workload on several targets

TWO_TARGETS = (
    SMALL.replace(
        "[tolerance]",
        """\
[target.cuda]
ranks = 4
dtype = "bfloat16"
seed = "host_nccl.cu"
baselines = ["torch_nccl"]

[tolerance]""",
    )
    .replace('dtype = "float32"\nshape', "shape")
    .replace('"4 * M * N"', '"BYTES * M * N"')
    .replace('N = 32\ntags = ["tune"]', 'N = 32\ntags = ["tune"]\ntargets = ["cpu"]')
    + """
[[shape]]
M = 4096
N = 4096
tags = ["tune"]
targets = ["cuda"]
"""
)


def test_a_target_has_dtypes_ranks_and_shapes_of_its_own() -> None:
    cpu = parse_workload(TWO_TARGETS, Path("rows"), "cpu")
    cuda = parse_workload(TWO_TARGETS, Path("rows"), "cuda")
    assert (cpu.target, cuda.target) == ("cpu", "cuda")
    assert (cpu.dtype, cuda.dtype) == ("float32", "bfloat16")
    assert {tensor.dtype for tensor in cuda.tensors} == {"bfloat16"}
    assert [shape.name for shape in cpu.shapes] == ["64x32", "7x5 P3"]
    assert [shape.name for shape in cuda.shapes] == ["7x5 P3", "4096x4096"]
    assert cuda.shapes[1].ranks == 4
    assert cuda.limit.memory_bytes.number(cuda.shapes[1].values) == 2 * 4096 * 4096
    assert cpu.limit.memory_bytes.number(cpu.shapes[0].values) == 4 * 64 * 32
    assert set(cpu.targets) == set(cuda.targets) == {"cpu", "cuda"}


def test_the_first_target_is_the_default() -> None:
    assert parsed(TWO_TARGETS).target == "cpu"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", "there is no [target.tpu]; known: cpu, cuda"),
        ('targets = ["cuda"]', 'targets = ["gpu"]', "'gpu' is not one of cpu, cuda"),
        ('targets = ["cpu"]', 'targets = ["cuda"]', "tag 'tune' for target cpu"),
    ],
)
def test_a_wrong_target_is_named(old: str, new: str, expected: str) -> None:
    target = "tpu" if not old else "cpu"
    with pytest.raises(DefinitionError, match=re.escape(expected)):
        parse_workload(TWO_TARGETS.replace(old, new) if old else TWO_TARGETS, Path("rows"), target)


# -- what a good definition says


def test_the_small_workload():
    workload = parsed(SMALL)
    assert (workload.name, workload.title) == ("rows", "Rows")
    assert workload.targets["cpu"].library == ("window.cpp",)
    assert [shape.name for shape in workload.shapes] == ["64x32", "7x5 P3"]
    assert workload.shapes_for("hidden")[0].values == {"M": 7, "N": 5, "RANKS": 3, "BYTES": 4}
    assert workload.shapes_for("tune")[0].ranks == 2
    first, second = workload.tensors
    assert (first.role, first.shard, first.symmetric) == (Role.INPUT, 0, False)
    assert (second.role, second.shard, second.symmetric) == (Role.OUTPUT, None, True)
    assert workload.limit.link_bytes.number({}) == 0.0
    assert workload.text == SMALL


def test_the_workload_of_the_repository():
    workload = load_workload(FOLDER)
    assert len(workload.shapes_for("tune")) == 5
    assert {shape.ranks for shape in workload.shapes_for("test")} == {2, 3}
    assert workload.root == ROOT
    assert workload.kernels == ROOT / "kernels" / "gemm_allgather"
    for spec in workload.targets.values():
        for file in (spec.seed, *spec.library):
            assert (workload.kernels / file).is_file()


def test_a_workload_may_take_the_kernels_of_another():
    fp16 = load_workload(ROOT / "workloads" / "gemm_fp16")
    bf16 = load_workload(ROOT / "workloads" / "gemm")
    assert fp16.name == "gemm_fp16" and fp16.kernels == bf16.kernels == ROOT / "kernels" / "gemm"
    assert (fp16.dtype, bf16.dtype, fp16.accumulate) == ("float16", "bfloat16", "float32")
    assert (fp16.shapes, fp16.targets["cuda"].baselines, fp16.tolerance, fp16.limit) == (
        bf16.shapes, bf16.targets["cuda"].baselines, bf16.tolerance, bf16.limit,
    )  # fmt: skip


def test_the_workload_of_the_documentation_is_one():
    page = (ROOT / "docs" / "workload.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert [shape.ranks for shape in parse_workload(text, FOLDER).shapes] == [2, 3]


def test_the_root_is_the_nearest_folder_with_kernels(tmp_path: Path):
    folder = tmp_path / "outer" / "inner" / "workloads" / "rows"
    folder.mkdir(parents=True)
    (folder / "workload.toml").write_text(SMALL)
    (tmp_path / "kernels").mkdir()
    assert load_workload(folder).root == tmp_path
    (tmp_path / "outer" / "kernels").mkdir()
    assert load_workload(folder).root == tmp_path / "outer"


# -- shards


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(1, 9))
def test_shards_cover_all_rows_once_and_in_order(rows: int, columns: int, ranks: int):
    shape = Shape("s", {"M": rows, "N": columns}, ("tune",), ranks)
    axes = (parse_expression("M"), parse_expression("N"))
    tensor = Tensor("A", "float32", axes, Role.INPUT, shard=0)
    at = 0
    sizes: list[int] = []
    for rank in range(ranks):
        extent, offset = tensor.local(shape, rank)
        assert offset == (at, 0)
        assert extent[1] == columns
        at += extent[0]
        sizes.append(extent[0])
    assert at == rows
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 9), st.integers(0, 8))
def test_the_other_axis_and_no_axis(m: int, n: int, ranks: int, rank: int):
    rank %= ranks
    shape = Shape("s", {"M": m, "N": n}, ("tune",), ranks)
    axes = (parse_expression("M"), parse_expression("N"))
    columns = Tensor("A", "float32", axes, Role.INPUT, shard=1)
    first, last = rank * n // ranks, (rank + 1) * n // ranks
    assert columns.local(shape, rank) == ((m, last - first), (0, first))
    whole = Tensor("A", "float32", axes, Role.INPUT)
    assert whole.local(shape, rank) == ((m, n), (0, 0))


# -- what is refused


@pytest.mark.parametrize(
    ("old", "new", "key", "what"),
    [
        ("schema = 1", "", "schema", "is missing, expected an integer"),
        ("schema = 1", "schema = true", "schema", "expected an integer"),
        ("schema = 1", "schema = 2", "schema", "is 2, this kerneltui reads 1"),
        ('title = "Rows"', "title = 3", "title", "expected a text, found 3"),
        ('title = "Rows"', 'titel = "Rows"', "title", "is missing"),
        ('title = "Rows"', 'title = "Rows"\nspeed = 9', "speed", "unknown key; known here:"),
        ('["M", "N"]\ndtype', "[]\ndtype", "dimensions", "at least one"),
        ('["M", "N"]\ndtype', '["M", 2]\ndtype', "dimensions", "list of texts"),
        ('["M", "N"]\ndtype', '["M", "M"]\ndtype', "dimensions", "'M'"),
        ('["M", "N"]\ndtype', '["M", "tags"]\ndtype', "dimensions", "'tags'"),
        ('["M", "N"]\ndtype', '["M", "RANKS"]\ndtype', "dimensions", "'RANKS'"),
        ('["M", "N"]\ndtype', '["M", "a b"]\ndtype', "dimensions", "'a b'"),
        ('"float32"\nacc', '"float31"\nacc', "dtype", "'float31' is not one of float32, float64"),
        ('"float64"', '"a\\nb"', "accumulate", "'a b' is not one of"),
        ('title = "Rows"', 'title = "Rows"\nkernels = 3', "kernels", "expected a text, found 3"),
        ('title = "Rows"', 'title = "Rows"\nkernels = ""', "kernels", "a folder in kernels/, such"),
        ('title = "Rows"', 'title = "Rows"\nkernels = ".."', "kernels", "found '..'"),
        ('title = "Rows"', 'title = "Rows"\nkernels = "a/b"', "kernels", "found 'a/b'"),
        ("[target.cpu]", "[targets.cpu]", "target", "is missing"),
        ("ranks = 2\n", 'ranks = "two"\n', "target.cpu.ranks", "expected an integer, found 'two'"),
        ("ranks = 2\n", "ranks = 0\n", "target.cpu.ranks", "is 0, expected at least 1"),
        ("ranks = 2\n", "ranks = 2\nrank = 2\n", "target.cpu.rank", "unknown key"),
        ('seed = "host.cpp"\n', "", "target.cpu.seed", "is missing"),
        ('["window.cpp"]', '"window.cpp"', "target.cpu.library", "a list of texts"),
        ('["torch_gloo"]', "[1]", "target.cpu.baselines", "a list of texts"),
        ("[tolerance]", "[tolerances]", "tolerance", "is missing, expected a table"),
        ("factor = 8.0", 'factor = "8"', "tolerance.factor", "expected a number"),
        ("factor = 8.0", "factor = true", "tolerance.factor", "expected a number"),
        ("factor = 8.0", "factor = nan", "tolerance.factor", "finite number above 0"),
        ("factor = 8.0", "factor = inf", "tolerance.factor", "finite number above 0"),
        ("factor = 8.0", "factor = 0", "tolerance.factor", "finite number above 0"),
        ("library = 4", "library = -4", "tolerance.library", "finite number above 0"),
        ('reduction = "N"', 'reduction = "N +"', "tolerance.reduction", "not an expression"),
        ('reduction = "N"', 'reduction = "Q"', "tolerance.reduction", "'Q' is not a known name"),
        ('reduction = "N"', 'reduction = "N - N"', "tolerance.reduction", "is 0 for shape 64x32"),
        ('"2 * M * N"', '"open(M)"', "limit.flops", "only numbers, names"),
        ('"2 * M * N"', '"2 * M * N / (M - 7)"', "limit.flops", "(shape 7x5 P3)"),
        ('"2 * M * N"', "true", "limit.flops", "expected an expression"),
        ('"4 * M * N"', '"0 - M"', "limit.memory_bytes", "is -64 for shape 64x32"),
        ("link_bytes = 0\n", "", "limit.link_bytes", "is missing"),
        ('name = "A"', "name = 1", "tensor[0].name", "expected a text"),
        ('name = "C"', 'name = "A"', "tensor", "A is listed twice"),
        ('role = "input"', 'role = "in"', "tensor[0].role", "'in' is not one of input, output"),
        ('role = "output"', 'role = "scale"', "tensor", "at least one with role 'output'"),
        ("shard = 0", "shard = 2", "tensor A.shard", "no such axis"),
        ("shard = 0", "shard = -1", "tensor[0].shard", "is -1, expected at least 0"),
        ("shard = 0", "shard = false", "tensor[0].shard", "expected an integer"),
        ("symmetric = true", "symmetric = 1", "tensor[1].symmetric", "expected true or false"),
        ("symmetric = true", 'distribution = "beta"', "tensor[1].distribution", "'beta'"),
        ('["M", "N"]\nrole = "input"', '["M", 4]\nrole = "input"', "tensor[0].shape", "texts"),
        ('["M", "N"]\nrole = "input"', '["M", "N N"]\nrole = "input"', "tensor[0].shape", "not an"),
        ('["M", "N"]\nrole = "input"', '["M", "K"]\nrole = "input"', "tensor A.shape", "'K'"),
        ('["M", "N"]\nrole = "input"', '["M - 9", "N"]\nrole = "input"', "tensor A.shape", "is -2"),
        ("M = 64", "M = 64.5", "shape[0].M", "expected an integer"),
        ("M = 64", "M = 0", "shape[0].M", "is 0, expected at least 1"),
        ("M = 64\n", "", "shape[0].M", "is missing"),
        ("M = 64", "M = 64\nK = 1", "shape[0].K", "unknown key"),
        (
            'tags = ["tune"]',
            'tags = ["tuned"]',
            "shape[0].tags",
            "'tuned' is not one of tune, test",
        ),
        ('tags = ["tune"]', 'tags = "tune"', "shape[0].tags", "a list of texts"),
        ('tags = ["tune"]', 'tags = ["test"]', "shape", "at least one shape with the tag 'tune'"),
        ("ranks = 3", "ranks = 0", "shape[1].ranks", "is 0, expected at least 1"),
        ("M = 7\nN = 5\nranks = 3", "M = 64\nN = 32", "shape", "64x32 is listed twice"),
        ("[[shape]]\nM = 7", "[shape]\nM = 7", "TOML", "line 42"),
        ("schema = 1", "schema = ", "TOML", "line 1"),
    ],
)
def test_an_error_names_file_key_and_what_was_expected(old: str, new: str, key: str, what: str):
    assert SMALL.count(old) >= 1
    with pytest.raises(DefinitionError) as caught:
        parsed(SMALL.replace(old, new, 1))
    text = str(caught.value)
    assert text.startswith(f"work/rows/workload.toml: {key}: "), text
    assert what in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("extra", "key"),
    [
        ("shape = 3", "shape"),
        ("shape = [1, 2]", "shape[0]"),
        ("shape = {M = 1}", "shape"),
        ("tensor = [[1]]", "tensor[0]"),
        ("target = 1", "target"),
        ("target = {cpu = 1}", "target.cpu"),
        ("target = {}", "target"),
        ("limit = []", "limit"),
    ],
)
def test_tables_are_tables(extra: str, key: str):
    name = extra.split(" ")[0]
    kept = [part for part in SMALL.split("\n\n") if f"[{name}" not in part]
    with pytest.raises(DefinitionError) as caught:
        parsed("\n\n".join([extra, *kept]))
    assert caught.value.key == key


@given(st.data())
def test_any_changed_line_is_still_a_workload_or_one_line_of_error(data: st.DataObject):
    lines = SMALL.splitlines()
    index = data.draw(st.integers(0, len(lines) - 1))
    key = lines[index].partition(" = ")[0]
    value = data.draw(
        st.sampled_from(["1", "-1", "1.5", "nan", "true", '""', '"x"', "[]", "[1]", '["M"]', "{}",
                         "{a = 1}", "[[1]]", "1979-05-27", '"\\n"', "99999999999999999999", ""])
    )  # fmt: skip
    lines[index] = data.draw(st.sampled_from([f"{key} = {value}", value, f"# {value}"]))
    try:
        workload = parsed("\n".join(lines))
    except DefinitionError as error:
        assert str(error).startswith("work/rows/workload.toml: ")
        assert "\n" not in str(error)
        return
    for tensor in workload.tensors:
        for shape in workload.shapes:
            assert all(size >= 0 for size in tensor.local(shape, 0)[0])


@given(st.text(max_size=60))
def test_any_text_is_one_line_of_error(text: str):
    with pytest.raises(DefinitionError) as caught:
        parsed(text)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(DefinitionError, match=r"workload\.toml: there is none; name a workload"):
        load_workload(tmp_path)
    (tmp_path / "workload.toml").write_bytes(b'title = "\xff"')
    with pytest.raises(DefinitionError, match="cannot be read"):
        load_workload(tmp_path)
    (tmp_path / "workload.toml").unlink()
    (tmp_path / "workload.toml").mkdir()
    with pytest.raises(DefinitionError, match="cannot be read"):
        load_workload(tmp_path)


def test_a_copy_elsewhere_is_the_same_problem(tmp_path: Path):
    copy = tmp_path / "workloads" / "gemm_allgather"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    here, there = load_workload(FOLDER), load_workload(copy)
    assert (here.name, here.text) == (there.name, there.text)
    assert here.shapes == there.shapes
