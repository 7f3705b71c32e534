"""The session: one git repository that holds a tuning effort, and nothing that matters elsewhere."""
