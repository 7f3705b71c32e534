"""Keys come from the environment and go nowhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kerneltui.agents.secrets import Keys, one_line

KEY = "sk-ant-marker-0123456789"


def test_all_of_them_are_hidden():
    keys = Keys.of(
        {
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_AUTH_TOKEN": "gateway-token",
            "ANTHROPIC_CUSTOM_HEADERS": "x-pass: open-sesame\nx-other: word",
        }
    )
    text = f"{KEY} gateway-token open-sesame sk-ant-someone-elses word"
    assert keys.hide(text) == "… … … … word"
    assert "marker" not in repr(keys)
    assert keys.present
    assert not Keys.of({}).present
    assert not Keys.of({"ANTHROPIC_API_KEY": "  "}).present


@given(st.text(), st.text())
def test_a_key_is_hidden_wherever_it_stands(before: str, after: str):
    assert KEY not in Keys(api_key=KEY).hide(f"{before}{KEY}{after}")


@given(st.text())
def test_a_line_is_one_line_that_moves_no_cursor(text: str):
    line = one_line(text)
    assert len(line) <= 401
    assert len(line.splitlines()) <= 1
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in line)
