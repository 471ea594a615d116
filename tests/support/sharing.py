"""How several processes share the tests.

Those that stand on real brokers wait more than they work, and their brokers are killed in the middle of them: they
follow one another in two rows, one of crashes and one of everything else, Spark included, so that each cluster is
started once or twice, not once a file. The others go file by file, so that what a file's tests have in common is made
once, and fill what the rows leave.

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
_CRASHES = "tests/crash/"  # starts brokers of its own
# What is in here starts brokers of its own, too, or stands on the one Spark session, which takes a gigabyte.
_OF_THEIR_OWN = ("tests/spark/", "tests/support/")
_TAKES_ONE = re.compile(r"\bkafka3?: (Kafka)?Cluster\b")  # as an argument of a test or a fixture
# What takes longest begins first, else one process would go on alone at the end: xdist begins with what has most tests.
_FIRST = (
    "crashes",
    "brokers",
    "tests/protocols/test_protocols.py",
    "tests/wal/test_signals.py",
    "tests/test_adoption.py",
    "tests/wal/test_enumeration.py",
    "tests/power/test_power_cuts.py",
    "tests/faults/test_failing_calls.py",
)


class Sharing(LoadScopeScheduling):
    """Which tests stay together, and which come first."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(_CRASHES):
            return "crashes"
        return "brokers" if _stands_on_brokers(file) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        first = next((scope for scope in _FIRST if scope in self.workqueue), None)
        if first is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


@cache
def _stands_on_brokers(file: str) -> bool:
    if file.startswith(_OF_THEIR_OWN):
        return True
    return _TAKES_ONE.search((_REPOSITORY / file).read_text(encoding="utf-8")) is not None
