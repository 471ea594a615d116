"""``aiorecover demo``: records survive a dead broker and ``kill -9``."""
