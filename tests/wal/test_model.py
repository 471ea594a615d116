"""Thousands of steps of the real thing beside a dictionary, see `tests.wal.model`."""

import logging

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.wal.model import RingMachine
from tests.wal.walk import smallest, walk, walk_all, walk_in_transactions

WALKS = 90  # of 80 steps; `python -m tests.prove model` takes a million


def test_whatever_happens_in_whatever_order_the_log_keeps_its_promises() -> None:
    run_state_machine_as_test(
        RingMachine,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_walks_as_the_long_proof_takes_them() -> None:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # every hole that a power cut leaves is logged
    try:
        for number in range(WALKS):
            taken, error = (walk, walk_all, walk_in_transactions)[number % 3](f"ci/{number}")
            assert error is None, (number, error, smallest(taken))
    finally:
        logging.disable(before)
