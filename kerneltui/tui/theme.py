"""Colours: the theme, its form for 16 colours, and the meaning of every style name.

Colour only repeats what a word or a sign says already, so NO_COLOR and 16 colours lose nothing. A style
name stands for a meaning (`state-pend`, `add`, `keyword`), several joined by blanks lie on each other.
"""

from __future__ import annotations

from functools import cache

from rich.style import Style
from textual.theme import Theme

__all__ = ["ANSI_THEME", "DARK_THEME", "STYLE_NAMES", "resolve"]

_INK = "#c9ced8"
_GROUND = "#14171c"
_DIM = "#858d9a"
_FAINT = "#4d5562"
_EDGE = "#3a414d"
_FOCUS = "#86b4e8"
_GREEN = "#8fcb92"
_RED = "#e58c8c"
_YELLOW = "#dcbd74"
_BLUE = "#86aef0"
_CYAN = "#7cc7c1"
_VIOLET = "#c3a0e0"

DARK_THEME = Theme(
    name="kerneltui",
    primary=_FOCUS,
    secondary=_CYAN,
    warning=_YELLOW,
    error=_RED,
    success=_GREEN,
    accent=_YELLOW,
    foreground=_INK,
    background=_GROUND,
    surface=_GROUND,
    panel="#1c2027",
    boost="#1c2027",
    dark=True,
    variables={
        "border": _FOCUS,
        "border-blurred": _EDGE,
        "block-cursor-foreground": _INK,
        "block-cursor-background": "#2b3545",
        "block-cursor-text-style": "none",
        "input-cursor-background": _INK,
        "input-cursor-foreground": _GROUND,
        "input-selection-background": "#34506e",
        "scrollbar": "#39404b",
        "scrollbar-hover": "#4a5361",
        "scrollbar-active": _FOCUS,
        "scrollbar-background": _GROUND,
        "scrollbar-background-hover": _GROUND,
        "scrollbar-background-active": _GROUND,
        "scrollbar-corner-color": _GROUND,
        "title-dim": _DIM,
    },
)

ANSI_THEME = Theme(
    name="kerneltui-16",
    ansi=True,
    primary="ansi_cyan",
    secondary="ansi_cyan",
    warning="ansi_yellow",
    error="ansi_red",
    success="ansi_green",
    accent="ansi_yellow",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    dark=True,
    variables={
        "border": "ansi_bright_cyan",
        "border-blurred": "ansi_bright_black",
        "ansi-background": "ansi_black",
        "ansi-foreground": "ansi_white",
        "block-cursor-foreground": "ansi_black",
        "block-cursor-background": "ansi_white",
        "block-cursor-text-style": "none",
        "input-cursor-background": "ansi_white",
        "input-cursor-foreground": "ansi_black",
        "input-selection-background": "ansi_blue",
        "input-selection-foreground": "ansi_bright_white",
        "scrollbar": "ansi_bright_black",
        "scrollbar-hover": "ansi_white",
        "scrollbar-active": "ansi_cyan",
        "scrollbar-background": "ansi_default",
        "scrollbar-background-hover": "ansi_default",
        "scrollbar-background-active": "ansi_default",
        "scrollbar-corner-color": "ansi_default",
        "title-dim": "ansi_default",
    },
)

# name: (true colour, 16 colours)
_STYLES: dict[str, tuple[str, str]] = {
    "": ("", ""),
    "ink": (_INK, ""),
    "strong": ("bold", "bold"),
    "dim": (_DIM, "dim"),
    "faint": (_FAINT, "bright_black"),
    "key": (f"bold {_FOCUS}", "bold cyan"),
    "title": (f"bold {_INK}", "bold"),
    "accent": (_FOCUS, "cyan"),
    "good": (_GREEN, "green"),
    "bad": (_RED, "red"),
    "warn": (_YELLOW, "yellow"),
    "banner": (f"bold {_GROUND} on {_YELLOW}", "bold black on yellow"),
    "notice": (f"{_YELLOW}", "yellow"),
    "cursor": ("on #273140", "not dim black on white"),
    "cursor-blurred": ("on #1f2630", "bold"),
    # States
    "state-base": (_DIM, "dim"),
    "state-prop": (_BLUE, "blue"),
    "state-build": (_BLUE, "blue"),
    "state-check": (_BLUE, "blue"),
    "state-bench": (_BLUE, "blue"),
    "state-pend": (f"bold {_YELLOW}", "bold yellow"),
    "state-ok": (_GREEN, "green"),
    "state-best": (f"bold {_GREEN}", "bold green"),
    "state-rej": (_DIM, "dim"),
    "state-fail": (_RED, "red"),
    "state-stale": (_VIOLET, "magenta"),
    "state-quar": (f"bold {_VIOLET}", "bold magenta"),
    "state-int": (_VIOLET, "magenta"),
    "verdict-faster": (f"bold {_GREEN}", "bold green"),
    "verdict-slower": (f"bold {_RED}", "bold red"),
    "verdict-unclear": (f"bold {_YELLOW}", "bold yellow"),
    # Agents
    "agent-fast": (_CYAN, "cyan"),
    "agent-slow": (_VIOLET, "magenta"),
    "agent-human": (_YELLOW, "yellow"),
    # Diff
    "number": (_FAINT, "dim"),
    "add": ("on #14281c", ""),
    "del": ("on #321b20", ""),
    "add-sign": (f"bold {_GREEN}", "bold green"),
    "del-sign": (f"bold {_RED}", "bold red"),
    "add-mark": ("bold on #25552f", "bold underline"),
    "del-mark": ("bold on #6d2c36", "bold underline"),
    "add-plain": ("", "green"),
    "del-plain": ("", "red"),
    "hunk": (f"{_CYAN} on #1b232c", "cyan"),
    "hunk-current": (f"bold {_FOCUS} on #22344c", "bold black on cyan"),
    "off": (f"{_FAINT} not bold", "dim"),
    "fold": (_FAINT, "dim"),
    # Chart
    "bound": (_YELLOW, "yellow"),
    "axis": (_FAINT, "dim"),
    "whisker-best": (_GREEN, "green"),
    "whisker-candidate": (f"bold {_INK}", "bold"),
    "whisker-baseline": (_DIM, ""),
    # Code; this is the highlight theme
    "keyword": (_VIOLET, "magenta"),
    "type": (_CYAN, "cyan"),
    "function": (_BLUE, "blue"),
    "string": (_GREEN, "green"),
    "literal": (_YELLOW, "yellow"),
    "comment": (f"italic {_DIM}", "dim"),
    "macro": ("#d9a27c", "yellow"),
    "name": ("", ""),
    "operator": ("", ""),
}

STYLE_NAMES = frozenset(_STYLES)


@cache
def resolve(names: str, ansi: bool) -> Style:
    """Returns the Rich style for blank-separated style names, later names lying on earlier ones.

    Raises:
        KeyError: A name has no meaning.
    """
    style = Style.null()
    for name in names.split():
        style += Style.parse(_STYLES[name][ansi])
    return style
