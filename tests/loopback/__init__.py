"""A server for tests that speaks the Messages API over real HTTP, answering from a script."""
