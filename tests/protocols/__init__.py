"""Small programs over the real log, crashed at every step with every subset of what was not flushed."""
