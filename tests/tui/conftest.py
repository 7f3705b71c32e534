"""The terminal that tests draw on: colours known, nothing moves by itself."""

from __future__ import annotations

import os

os.environ["TEXTUAL_ANIMATIONS"] = "none"
os.environ["COLORTERM"] = "truecolor"
os.environ["TERM"] = "xterm-256color"
os.environ["TEXTUAL_COLOR_SYSTEM"] = "truecolor"
for name in ("NO_COLOR", "TMUX", "VISUAL", "EDITOR", "SSH_CONNECTION"):
    os.environ.pop(name, None)
