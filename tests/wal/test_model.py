"""Thousands of steps of the real thing beside a dictionary, see `tests.wal.model`."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.wal.model import RingMachine


def test_whatever_happens_in_whatever_order_the_log_keeps_its_promises() -> None:
    run_state_machine_as_test(
        RingMachine,
        settings=settings(
            max_examples=200,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
