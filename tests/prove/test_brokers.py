"""What becomes of a proof with brokers, and without."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.prove.brokers import on_brokers
from tests.support.broker import BrokerUnavailableError


@contextmanager
def some() -> Iterator[Any]:
    yield SimpleNamespace(description="some")


def none() -> AbstractContextManager[Any]:
    raise BrokerUnavailableError("there is no Java")


@pytest.mark.parametrize("status", [0, 1])
def test_its_status_is_that_of_the_proof_and_the_brokers_are_named(
    status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_brokers(some, lambda _: status) == status
    assert capsys.readouterr().out == "broker: some\n"


def test_without_brokers_it_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert on_brokers(none, lambda _: 0) == 2
    assert capsys.readouterr().err == "broker: there is no Java\n"


@pytest.mark.parametrize(("can_kill", "status"), [(True, 0), (False, 2)])
def test_where_faults_are_wanted_there_have_to_be_brokers_that_can_be_killed(
    can_kill: bool, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def running() -> AbstractContextManager[Any]:
        return nullcontext(SimpleNamespace(description="some", can_kill=can_kill))

    assert on_brokers(running, lambda _: 0, faults=True) == status
    assert capsys.readouterr().err.startswith("--faults needs brokers that can be killed") is not can_kill
