"""How several processes share the tests.

All that stand on real brokers follow one another in one of them: they wait more than they work, and brokers are killed
in the middle of them. Those on the one Spark session, which work more than they wait, follow one another in whichever
process comes to them, with a broker of its own. The others go file by file, so that what a file's tests have in common
is made once.

(A mark for each test would say the same, but xdist's scheduler by marks renames tests, which pytest 9.2 no longer
allows.)
"""

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

__all__ = ["Sharing"]

_REPOSITORY = Path(__file__).parents[2]
# What is in here starts brokers of its own.
_OF_THEIR_OWN = ("tests/crash/", "tests/support/")
_SPARK = "tests/spark/"
_TAKES_ONE = re.compile(r"\bkafka3?: (Kafka)?Cluster\b")  # as an argument of a test or a fixture


class Sharing(LoadScopeScheduling):
    """Which tests stay together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith(_SPARK):
            return "spark"
        return "brokers" if _stands_on_brokers(file) else file


@cache
def _stands_on_brokers(file: str) -> bool:
    if file.startswith(_OF_THEIR_OWN):
        return True
    return _TAKES_ONE.search((_REPOSITORY / file).read_text(encoding="utf-8")) is not None
