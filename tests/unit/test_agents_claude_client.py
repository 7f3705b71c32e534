"""The SDK is imported in one place, and only once a model is asked."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import kerneltui
from kerneltui.agents.claude_client import VENDOR_URL, host_of, server_address

PACKAGE = Path(kerneltui.__file__).parent


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_one_module_imports_it():
    found = [path.name for path in PACKAGE.rglob("*.py") if "anthropic" in imported(path)]
    assert found == ["claude_client.py"]


def test_a_model_that_is_not_asked_imports_nothing():
    code = """
import sys
from kerneltui.agents.agent_config import AgentConfig
from kerneltui.agents.claude import ClaudeModel
from kerneltui.agents.model_port import ModelCall, Role, Turn
from kerneltui.agents.spend import Spend
model = ClaudeModel(AgentConfig(), Spend(None), {"ANTHROPIC_API_KEY": "x"})
assert model.usable
assert model.quote(ModelCall(Role.FAST, (), (Turn("user", "x"),)))[1]
model.close()
print({"anthropic", "httpx2", "pydantic"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stderr


def test_where_the_server_is():
    environment = {"ANTHROPIC_BASE_URL": " http://gateway:4000 "}
    assert server_address("", {}) == VENDOR_URL
    assert server_address("", environment) == "http://gateway:4000"
    assert server_address("http://own", environment) == "http://own"


def test_an_address_is_told_without_what_is_private_in_it():
    assert host_of("https://me:secret@gateway:4000/v1/key?x=1") == "gateway:4000"
    assert host_of(VENDOR_URL) == "api.anthropic.com"
