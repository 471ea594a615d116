"""`python -m tests.prove model --seed S --count N`: the crash model of the ring, N steps long."""

from tests.model.__main__ import main

__all__ = ["main"]
