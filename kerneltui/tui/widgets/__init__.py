"""Widgets: where the user looks; what they show comes from snapshots."""
