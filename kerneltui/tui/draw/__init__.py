"""Pure functions from a snapshot to lines for the screen."""
