"""The death of the driver, where a second Spark would take too long."""

import pytest

from aiorecover.spark.files import Files


class DeathError(Exception):
    """Ends a query in the middle of what it does."""


def dying(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The next move to such a name is the last thing that is done."""
    move = Files.move

    def move_and_die(self: Files, source: str, destination: str) -> None:
        move(self, source, destination)
        if destination.endswith(place):
            raise DeathError(place)

    monkeypatch.setattr(Files, "move", move_and_die)
