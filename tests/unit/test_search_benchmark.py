import importlib.util
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "search.py"


@pytest.fixture(scope="module")
def main() -> Callable[[list[str]], int]:
    spec = importlib.util.spec_from_file_location("benchmark_search", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture
def space(tmp_path: Path) -> Path:
    values = {"a": list(range(12)), "b": list(range(9)), "c": [0, 1, 2]}
    cache = {}
    for a, b, c in itertools.product(*values.values()):
        time = 1 + abs(a - 7) + abs(b - 2) + c if (a + b) % 5 else "RuntimeFailedConfig"
        cache[f"{a},{b},{c}"] = {"a": a, "b": b, "c": c, "time": time}
    path = tmp_path / "bowl.json"
    path.write_text(
        json.dumps({"tune_params_keys": list(values), "tune_params": values, "cache": cache})
    )
    return path


def test_json_holds_every_strategy_and_checkpoint(
    main: Callable[[list[str]], int], space: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["--json", "--seeds", "3-6", "--budget", "50", str(space), str(space)]
    assert main(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    keys = [(record["space"], record["strategy"]) for record in first]
    assert keys == [
        ("bowl", "offline"),
        ("bowl", "random"),
        ("bowl", "offline"),
        ("bowl", "random"),
        ("mean of spaces", "offline"),
        ("mean of spaces", "random"),
    ]
    for record in first:
        assert list(record["after"]) == ["20", "40", "50"]
        assert record["seeds"] == 4
        for part in record["after"].values():
            assert 0 < part["mean_low"] <= part["mean"] <= part["mean_high"] <= 1
    offline, random = first[0]["after"]["50"], first[1]["after"]["50"]
    assert offline["mean"] > random["mean"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_the_table_names_spaces_and_strategies(
    main: Callable[[list[str]], int], space: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["--seeds", "2", "--budget", "20", "--noise", "0.05", str(space)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[-2:]] == [["bowl", "offline"], ["bowl", "random"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "5-3", "x"], "5-3 holds no seed"),
        (["--seeds", "few", "x"], "few is neither a number nor a range"),
        (["--budget", "0", "x"], "0 is not a number from 1"),
        (["--strategies", "best", "x"], "unknown strategy best; use one of offline, random"),
    ],
)
def test_wrong_options_are_usage_errors(
    main: Callable[[list[str]], int],
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unreadable_file_is_one_line(
    main: Callable[[list[str]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([str(tmp_path / "none.json")]) == 2
    assert (
        capsys.readouterr().err == f"search: {tmp_path / 'none.json'}: No such file or directory\n"
    )
