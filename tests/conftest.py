"""Settings for every test."""

from __future__ import annotations

from hypothesis import settings

# No deadline, so that a busy machine cannot make a property fail; few examples, so that all tests
# stay quick. To look harder: pytest --hypothesis-profile=thorough.
settings.register_profile("kerneltui", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("kerneltui")
