"""kerneltui: interactive, human-in-the-loop kernel tuning in the terminal."""
