"""The domain of kerneltui as plain data and pure functions; standard library only."""
