"""What is said of a fault that is planted in the library: without it a scenario is green, and with it red."""

from collections.abc import Callable

import pytest

from tests.wal.ledger import ViolationError

Patch = pytest.MonkeyPatch
Scenario = Callable[[], None]
Fault = Callable[[Patch], None]
Planted = list[tuple[Scenario, Fault]]


def names_of(planted: Planted) -> list[str]:
    """For the cases of a test."""
    return [f"{scenario.__name__}-{fault.__name__}" for scenario, fault in planted]


def tells(scenario: Scenario, fault: Fault, monkeypatch: Patch) -> None:
    """Green, then red, and green again: the fault is what it told."""
    scenario()
    with monkeypatch.context() as patch:
        fault(patch)
        with pytest.raises(ViolationError):
            scenario()
    scenario()
