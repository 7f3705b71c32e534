"""Screens: the tuning screen, the replay screen and their dialogs."""
