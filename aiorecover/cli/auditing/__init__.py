"""``aiorecover audit``: its options, the engine that answers, and how the answer is shown."""
