"""`python -m kerneltui`, the same as the command."""

from kerneltui.cli import main

main()
