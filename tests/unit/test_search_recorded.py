import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kerneltui.search.random_search import RandomSearch
from kerneltui.search.recorded import RecordedError, read_recorded, simulate

CACHE = {
    "tune_params_keys": ["block", "mode"],
    "tune_params": {"block": [32, 64, 128], "mode": ["a", "b"]},
    "cache": {
        "32,a": {"block": 32, "mode": "a", "time": 2.0},
        "64,a": {"block": 64, "mode": "a", "time": 1.0},
        "128,a": {"block": 128, "mode": "a", "time": "CompilationFailedConfig"},
        "32,b": {"block": 32, "mode": "b", "time": "InvalidConfig"},
        "64,b": {"block": 64, "mode": "b", "time": 1e20},
    },
}


def result(block: int, mode: str, invalidity: str, time: object):
    return {
        "configuration": {"block": block, "mode": mode},
        "invalidity": invalidity,
        "measurements": [{"name": "time", "value": time, "unit": "ms"}],
    }


T4 = {
    "results": [
        result(64, "a", "correct", 1.0),
        result(32, "a", "correct", 2.0),
        result(128, "a", "compile", ""),
        result(32, "b", "constraints", ""),
        result(64, "b", "runtime", ""),
    ]
}


@pytest.mark.parametrize("document", [CACHE, T4], ids=["cache", "t4"])
@pytest.mark.parametrize("packed", [True, False])
def test_both_formats_give_the_same_space(tmp_path: Path, document: dict[str, Any], packed: bool):
    path = tmp_path / ("space.json.gz" if packed else "space.json")
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    recorded = read_recorded(path)
    assert recorded.name == "space"
    assert recorded.times == {(32, "a"): 2.0, (64, "a"): 1.0, (128, "a"): None, (64, "b"): None}
    assert recorded.optimum == 1.0
    assert recorded.space.size == 4
    assert recorded.space.parameters[0].values == (32, 64, 128)


def without(key: str):
    return json.dumps({name: value for name, value in CACHE.items() if name != key})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not complete JSON or gzip"),
        ("[]", "neither a Kernel Tuner cache"),
        ('{"cache": {}, "tune_params_keys": ["a"], "tune_params": {"a": [1]}}', "no configuration"),
        (without("tune_params"), "key 'tune_params' is missing"),
        (json.dumps({**CACHE, "cache": {"32,a": 1.0}}), "an entry has an unexpected form"),
        (
            json.dumps({**CACHE, "cache": {"7,a": {"block": 7, "mode": "a", "time": 1.0}}}),
            "7 is not a legal value",
        ),
        (json.dumps({**CACHE, "cache": {"x": {"block": 32, "time": 1.0}}}), "key 'mode' is missi"),
        ('{"results": []}', "no configuration has a time"),
        (json.dumps({"results": [result(1, "a", "compile", "")]}), "no configuration has a time"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RecordedError, match=message) as caught:
        read_recorded(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_cut_gzip_file_and_a_missing_file(tmp_path: Path):
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(json.dumps(CACHE).encode())[:-9])
    with pytest.raises(RecordedError, match="not complete JSON or gzip"):
        read_recorded(path)
    with pytest.raises(RecordedError, match="No such file"):
        read_recorded(tmp_path / "none.json")


def test_a_simulation_counts_failures_and_ends_with_the_space(tmp_path: Path):
    path = tmp_path / "space.json"
    path.write_text(json.dumps(CACHE))
    recorded = read_recorded(path)
    curve = simulate(recorded, RandomSearch(recorded.space, 3), budget=6, batch=3)
    assert len(curve) == 6
    assert curve == sorted(curve)
    assert set(curve) <= {0.0, 0.5, 1.0}
    assert curve[3:] == [1.0, 1.0, 1.0]
