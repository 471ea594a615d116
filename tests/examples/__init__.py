"""The programs of `examples/`, run as a user runs them."""
