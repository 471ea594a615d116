"""How several processes share the tests.

Those that stand on real brokers wait more than they work, and kill brokers in the middle of it: they follow one another
in two processes, one for the crashes, which start brokers of their own, and one for the rest. These take longest, so
they begin first. Those on the one Spark session follow one another, with a broker of its own. The others go file by
file, so that what a file's tests have in common is made once.

Of three and more processes the last one is patient: it takes what the others leave of the processors, first of all the
tests on Spark, which work more than they wait, and then those that wait for nobody and look at no clock. To the others
these come last.

(A mark for each test would say the same, but xdist's scheduler by marks renames tests, which pytest 9.2 no longer
allows.)
"""

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

__all__ = ["Sharing", "give_time", "give_way", "is_for_the_patient", "is_patient", "is_quick"]

_REPOSITORY = Path(__file__).parents[2]
_CRASHES, _BROKERS, _SPARK = "tests/crash/", "brokers", "tests/spark/"
_PROGRAMS = ("tests/benchmarks/", "tests/cli/", "tests/docs/", "tests/examples/", "tests/faults/", "tests/model/")
_SERVERS = ("tests/integrations/test_prefork.py", "tests/testing/test_plugin.py")  # gunicorn, Celery, pytest itself
_OF_THEIR_OWN = "tests/support/"  # what is in here starts brokers of its own
_TAKES_ONE = re.compile(r"\bkafka3?: (Kafka)?Cluster\b")  # as an argument of a test or a fixture
_KNOWS_BROKERS = re.compile(r"^from tests\.support\.(broker|secured)\b", re.MULTILINE)
_WAITS = re.compile(r"^(?:import|from) (?:asyncio|signal|subprocess|threading|time|tests\.(?!support))\b", re.MULTILINE)
_PATIENT_FROM = 3  # processes
_LESS_URGENT = 3  # half of the processor's time that another process gets: Spark is long, and must not come last
_PATIENCE_S = 900  # for a test that takes a minute on an idle processor


class Sharing(LoadScopeScheduling):
    """Which tests stay together, which begin, and which are for the patient one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        for directory in (_CRASHES, _SPARK):
            if file.startswith(directory):
                return directory
        return _BROKERS if _stands_on_brokers(file) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        scope = self._next_for(node)
        if scope is None:
            node.shutdown()
            return
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _next_for(self, node: WorkerController) -> str | None:
        """The longest, the others, and what is for the patient one; of this, for that one, whatever there is."""
        if is_patient(node.workerinput):
            return next(iter(sorted(filter(is_for_the_patient, self.workqueue), key=_is_spark, reverse=True)), None)
        begins = [scope for scope in (_CRASHES, _BROKERS) if scope in self.workqueue]
        return next(iter([*begins, *sorted(self.workqueue, key=_comes)]), None)


def _is_spark(scope: str) -> bool:
    return scope == _SPARK


def _comes(scope: str) -> int:
    """Return the turn of a scope, for the others: Spark first, since it is long; pure work last."""
    return 0 if _is_spark(scope) else 1 + is_for_the_patient(scope)


def is_patient(workerinput: Mapping[str, Any]) -> bool:
    """Return whether this process is the last one of three or more, by xdist's numbers."""
    count: int = workerinput["workercount"]
    return count >= _PATIENT_FROM and workerinput["workerid"] == f"gw{count - 1}"


def give_way(config: pytest.Config) -> None:
    """Lower the priority of this process, if it is the patient one."""
    workerinput = getattr(config, "workerinput", None)  # not where there are no others
    if workerinput is not None and is_patient(workerinput):
        os.nice(_LESS_URGENT)


def give_time(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Give the patient process a longer limit: its speed depends on the other processes."""
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None and is_patient(workerinput):
        for item in items:
            item.add_marker(pytest.mark.timeout(_PATIENCE_S), append=False)


@cache
def is_for_the_patient(scope: str) -> bool:
    """Return whether a scope is for the patient process: Spark's, or a file whose tests never wait."""
    return _is_spark(scope) or (scope not in (_CRASHES, _BROKERS) and _WAITS.search(_text(scope)) is None)


@cache
def is_quick(file: str) -> bool:
    """Whether the tests of a file start no Java, and no other program that takes long."""
    return not file.startswith((_CRASHES, _SPARK, *_PROGRAMS, *_SERVERS)) and _KNOWS_BROKERS.search(_text(file)) is None


@cache
def _stands_on_brokers(file: str) -> bool:
    return file.startswith(_OF_THEIR_OWN) or _TAKES_ONE.search(_text(file)) is not None


def _text(file: str) -> str:
    return (_REPOSITORY / file).read_text(encoding="utf-8")
