"""`agents.toml`: strict, with file and key in every error; good without the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerneltui.agents.agent_config import (
    AgentConfig,
    IslandConfig,
    RoleModel,
    Thinking,
    load_agent_config,
    parse_agent_config,
)
from kerneltui.agents.claude_request import request_of
from kerneltui.agents.model_port import ModelCall, Role, Turn, Usage
from kerneltui.agents.pricing import SHIPPED_PRICES, ModelPrice, Rates, price_of
from kerneltui.model.errors import DefinitionError

WHOLE = """
base_url = "http://localhost:8000/"

[roles.fast]
model = "local"
max_tokens = 4000
thinking = "budget"
thinking_tokens = 2000
effort = "low"
strict_tools = false
force_tools = true
cache = false

[roles.meta]
model = "claude-haiku-4-5"

[limits]
attempts = 3
reasks = 0
silence_ms = 5000

[prices.local]
input = 0.1
output = 1
cache_write = 0
cache_read = 0.000001

[prices.tiered]
input = 1
output = 1
cache_write = 1
cache_read = 1
long_above = 200000
[prices.tiered.long]
input = 2
output = 2
cache_write = 2
cache_read = 2

[budget]
usd = 12.50
tokens = 3000000
"""


def test_everything_can_be_said():
    config = parse_agent_config(WHOLE)
    assert config.base_url == "http://localhost:8000"
    assert config.roles[Role.FAST] == RoleModel(
        "local", 4000, Thinking.BUDGET, 2000, "low", False, True, False
    )
    assert config.roles[Role.META].model == "claude-haiku-4-5"
    assert config.roles[Role.SLOW] == AgentConfig().roles[Role.SLOW]
    assert (config.limits.attempts, config.limits.reasks, config.limits.silence_ms) == (3, 0, 5000)
    assert config.prices["local"] == ModelPrice(Rates(100_000, 1_000_000, 0, 1))
    assert config.prices["tiered"].cost(Usage(200_001)) == 400_002
    assert config.prices["claude-opus-5-5"] == SHIPPED_PRICES["claude-opus-5-5"]
    assert config.budget_micro_usd == 12_500_000
    assert config.token_limit == 3_000_000


def test_the_file_need_not_be_there(tmp_path: Path):
    assert load_agent_config(tmp_path) == AgentConfig() == parse_agent_config("")
    (tmp_path / "agents.toml").write_text("[budget]\nunlimited = true\n")
    assert load_agent_config(tmp_path).budget_micro_usd is None
    (tmp_path / "agents.toml").write_bytes(b"\xff")
    with pytest.raises(DefinitionError, match=r"agents\.toml: file: cannot be read"):
        load_agent_config(tmp_path)


def test_every_default_model_has_a_price_and_a_budget():
    config = AgentConfig()
    assert set(config.roles) == set(Role)
    assert all(price_of(config.prices, role.model) for role in config.roles.values())
    assert config.budget_micro_usd


MIXED = """
[roles.slow]
models = ["large", "older", "local.small"]
effort = "high"

[models.older]
thinking = "budget"
thinking_tokens = 4000

[models."local.small"]
thinking = "off"
max_tokens = 6000
force_tools = true
"""


def test_each_model_of_a_role_thinks_in_its_own_way():
    config = parse_agent_config(MIXED)
    large = config.asked(Role.SLOW)
    older, small = config.asked(Role.SLOW, "older"), config.asked(Role.SLOW, "local.small")
    assert large == config.asked(Role.SLOW, "large") == config.roles[Role.SLOW]
    assert (large.thinking, older.thinking, small.thinking) == (
        Thinking.ADAPTIVE, Thinking.BUDGET, Thinking.OFF,
    )  # fmt: skip
    assert (older.thinking_tokens, older.max_tokens, older.force_tools) == (4000, 32_000, False)
    assert (small.max_tokens, small.force_tools) == (6000, True)
    assert {one.effort for one in (large, older, small)} == {"high"}  # the role's, for all
    judge = config.with_model(Role.JUDGE, "older").asked(Role.JUDGE)
    assert (judge.model, judge.thinking, judge.max_tokens) == ("older", Thinking.BUDGET, 8_000)


def test_what_is_asked_of_the_server_is_the_models_own_thinking():
    config = parse_agent_config(MIXED)
    call = ModelCall(Role.SLOW, (), [Turn("user", "go")], (), model="older")
    sent = request_of(call, config.asked(call.role, call.model))
    assert sent["thinking"] == {"type": "enabled", "budget_tokens": 4000}
    sent = request_of(call, config.asked(call.role, "local.small"))
    assert sent["thinking"] == {"type": "disabled"} and sent["max_tokens"] == 6000


SEVERAL = """
[roles.slow]
models = ["large", "small"]
max_tokens = 5000

[islands]
count = 3
migrate_every = 12
"""


def test_several_models_for_the_slow_path_and_its_islands():
    config = parse_agent_config(SEVERAL)
    slow = config.roles[Role.SLOW]
    assert slow.names == ("large", "small")
    assert slow.named("small").model == "small"
    assert slow.named("small").max_tokens == 5000
    assert slow.named("") == slow
    assert config.islands == IslandConfig(3, 12)
    assert parse_agent_config("").islands == IslandConfig(2, 8)
    assert parse_agent_config("").ahead == 1
    assert parse_agent_config("[search]\nahead = 3").ahead == 3
    assert config.with_model(Role.SLOW, "mine").roles[Role.SLOW].names == ("mine",)
    assert config.with_model(Role.SLOW, "a b").roles[Role.SLOW].names == ("a", "b")


@pytest.mark.parametrize(
    ("text", "key", "word"),
    [
        ("[roles.slow]\nmodels = []", "roles.slow.models", "expected names"),
        ('[roles.slow]\nmodels = ["a b"]', "roles.slow.models", "expected names"),
        ('[roles.slow]\nmodels = ["a", "a"]', "roles.slow.models", "'a' is listed twice"),
        ('[roles.slow]\nmodels = ["a", "offline"]', "roles.slow.models", "'offline' is the search"),
        ("[roles.slow]\nmodels = [1]", "roles.slow.models", "list of texts"),
        ('[roles.slow]\nmodel = "a"\nmodels = ["b"]', "roles.slow.models", "one of the two"),
        ('[roles.fast]\nmodels = ["a"]', "roles.fast.models", "only the slow path"),
        ("[islands]\ncount = 0", "islands.count", "at least 1"),
        ("[islands]\ncount = 9", "islands.count", "at most 8"),
        ("[islands]\nmigrate_every = 0", "islands.migrate_every", "at least 1"),
        ("[islands]\nrate = 1", "islands.rate", "unknown key"),
        ("[search]\nahead = -1", "search.ahead", "at least 0"),
        ("[search]\nahead = 9", "search.ahead", "at most 8"),
        ("[search]\ndepth = 1", "search.depth", "unknown key"),
    ],
)
def test_wrong_lists_and_islands_are_named(text: str, key: str, word: str):
    with pytest.raises(DefinitionError) as caught:
        parse_agent_config(text)
    assert key in str(caught.value)
    assert word in str(caught.value)


def test_another_model_for_a_role():
    config = AgentConfig().with_model(Role.SLOW, "x")
    assert config.roles[Role.SLOW].model == "x"
    assert config.roles[Role.FAST] == AgentConfig().roles[Role.FAST]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = ", "file: is not TOML"),
        ("other = 1", "other: unknown key"),
        ('api_key = "x"', "api_key: keys come from the environment only"),
        ('[roles.fast]\nauth_token = "x"', "roles.fast.auth_token: keys come from"),
        ('base_url = "localhost:80"', "base_url: expected a server's address"),
        ('base_url = "http://[x"', "base_url: expected a server's address"),
        ('base_url = "http://a:b@c"', "base_url: has a name or a password"),
        ("roles = 1", "roles: expected tables"),
        ("[roles]\nfast = 1", "roles.fast: expected a table"),
        ('[roles.boss]\nmodel = "x"', "'boss' is not one of fast, slow, judge, meta"),
        ('[roles.fast]\nmodel = " "', "roles.fast.model: is empty"),
        ("[roles.fast]\nmodel = 1", "roles.fast.model: expected a text"),
        ("[roles.fast]\nmax_tokens = 0", "roles.fast.max_tokens: is 0, expected at least 1"),
        ('[roles.fast]\nthinking = "much"', "roles.fast.thinking: 'much' is not one of"),
        ('[roles.fast]\nthinking = "budget"\nmax_tokens = 9000', "expected less than max_tokens"),
        ("[roles.fast]\nthinking_tokens = 5", "expected at least 1024"),
        (
            '[models.x]\nthinking = "hard"',
            "models.x.thinking: 'hard' is not one of default, adaptive",
        ),
        (
            "[models.x]\nthinking_tokens = 5",
            "models.x.thinking_tokens: is 5, expected at least 1024",
        ),
        ("[models.x]\nmodel = 'y'", "models.x.model: unknown key; known here: cache, effort"),
        ("[models.'a b']\ncache = false", "'a b' is no name of a model"),
        (
            "[roles.judge]\nmodel = 'x'\n[models.x]\nthinking = 'budget'",
            "models.x.thinking_tokens: is 16000, expected less than max_tokens, which is 8000 in the role",
        ),
        ('[roles.fast]\neffort = ""', "roles.fast.effort: '' is not one of low"),
        ("[roles.fast]\ncache = 1", "roles.fast.cache: expected true or false"),
        ("[roles.fast]\nmodl = 1", "roles.fast.modl: unknown key"),
        ("[limits]\nattempts = 0", "limits.attempts: is 0, expected at least 1"),
        ("[limits]\ntries = 0", "limits.tries: unknown key"),
        ("[prices.x]\ninput = 1", "prices.x.output: is missing"),
        ('[prices.x]\ninput = "1"', "prices.x.input: expected dollars, found '1'"),
        ("[prices.x]\ninput = -1", "prices.x.input: is -1, expected dollars from 0"),
        ("[prices.x]\ninput = nan", "prices.x.input: is NaN"),
        ("[prices.x]\ninput = 1e-7", "finer than a millionth"),
        ("[budget]\nusd = true", "budget.usd: expected dollars"),
        ("[budget]\nusd = 1\nunlimited = true", "budget.unlimited: there is a limit"),
        ("[budget]\ntokens = -1", "budget.tokens: is -1"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str):
    with pytest.raises(DefinitionError) as caught:
        parse_agent_config(text)
    assert str(caught.value).startswith("agents.toml: ")
    assert problem in str(caught.value)


@given(st.integers(0, 10**12))
def test_dollars_are_kept_to_the_millionth(micro: int):
    text = f"{micro // 10**6}.{micro % 10**6:06d}"
    assert parse_agent_config(f"[budget]\nusd = {text}").budget_micro_usd == micro
