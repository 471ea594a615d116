"""Which tests go to which process, and in which order."""

from collections import OrderedDict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sharing import Sharing, give_time, is_for_the_patient, is_patient

CRASHES, BROKERS, SPARK = "tests/crash/", "brokers", "tests/spark/"
WORK = "tests/test_serialization.py"
WAITS = "tests/test_hanging_disk.py"
OTHER = "tests/test_skips.py"


class Node:
    """One process, as xdist sees it."""

    def __init__(self, number: int, count: int) -> None:
        self.workerinput = {"workerid": f"gw{number}", "workercount": count}
        self.ended = False

    def shutdown(self) -> None:
        self.ended = True

    def send_runtest_some(self, indexes: Sequence[int]) -> None:
        assert indexes


def given(node: Any, *scopes: str) -> list[str]:
    """Return the scopes that a process would get if it were alone, in order."""
    sharing = Sharing.__new__(Sharing)
    sharing.workqueue = OrderedDict((scope, {f"{scope}::test": False}) for scope in scopes)
    sharing.assigned_work = {}
    sharing.registered_collections = {node: [f"{scope}::test" for scope in scopes]}
    while sharing.workqueue and not node.ended:
        sharing._assign_work_unit(node)
    return [*sharing.assigned_work.get(node, {})]


@pytest.mark.parametrize(("number", "count"), [(0, 2), (1, 2), (0, 3), (1, 3)])
def test_the_longest_begin_and_what_is_for_the_patient_ends(number: int, count: int) -> None:
    node = Node(number, count)
    assert given(node, WORK, OTHER, SPARK, WAITS, BROKERS, CRASHES) == [CRASHES, BROKERS, SPARK, OTHER, WAITS, WORK]
    assert not node.ended


@pytest.mark.parametrize("count", [3, 4])
def test_the_last_of_three_or_more_takes_spark_and_what_is_work_alone_and_nothing_else(count: int) -> None:
    node = Node(count - 1, count)
    assert given(node, OTHER, WORK, SPARK, WAITS, BROKERS, CRASHES) == [SPARK, WORK]
    assert node.ended


@pytest.mark.parametrize(("number", "count", "patient"), [(0, 1, 0), (1, 2, 0), (1, 3, 0), (2, 3, 1), (3, 4, 1)])
def test_one_of_two_processes_is_not_patient(number: int, count: int, patient: int) -> None:
    assert is_patient({"workerid": f"gw{number}", "workercount": count}) == bool(patient)


@pytest.mark.parametrize(("number", "marked"), [(1, []), (2, [900])])
def test_tests_of_the_patient_one_may_take_as_long_as_it_takes(number: int, marked: list[int]) -> None:
    marks: list[int] = []
    item: Any = SimpleNamespace(add_marker=lambda mark, *, append: marks.append(mark.args[0]))
    config: Any = SimpleNamespace(workerinput=Node(number, 3).workerinput)
    give_time(config, [item])
    assert marks == marked


@pytest.mark.parametrize(
    ("scope", "patient"), [(WORK, True), (SPARK, True), (WAITS, False), (OTHER, False), (BROKERS, False)]
)
def test_the_patient_process_gets_spark_and_tests_that_never_wait(scope: str, patient: bool) -> None:
    assert is_for_the_patient(scope) == patient
