"""How several processes share the tests.

Those that stand on real brokers wait more than they work, and kill brokers in the middle of it: they follow one another
in two processes, one for the crashes, which start brokers of their own, and one for the rest. Those on the one Spark
session, which work more than they wait, follow one another in whichever process comes to them, with a broker of its
own. These three take longest, so they begin first. The others go file by file, so that what a file's tests have in
common is made once.

(A mark for each test would say the same, but xdist's scheduler by marks renames tests, which pytest 9.2 no longer
allows.)
"""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

__all__ = ["Sharing"]

_REPOSITORY = Path(__file__).parents[2]
_CRASHES, _BROKERS, _SPARK = _LONG = ("tests/crash/", "brokers", "tests/spark/")
_OF_THEIR_OWN = "tests/support/"  # what is in here starts brokers of its own
_TAKES_ONE = re.compile(r"\bkafka3?: (Kafka)?Cluster\b")  # as an argument of a test or a fixture


class Sharing(LoadScopeScheduling):
    """Which tests stay together, and which begin."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        for directory in (_CRASHES, _SPARK):
            if file.startswith(directory):
                return directory
        return _BROKERS if _stands_on_brokers(file) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        for scope in reversed(_LONG):
            if scope in self.workqueue:
                self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


@cache
def _stands_on_brokers(file: str) -> bool:
    if file.startswith(_OF_THEIR_OWN):
        return True
    return _TAKES_ONE.search((_REPOSITORY / file).read_text(encoding="utf-8")) is not None
