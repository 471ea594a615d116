"""The consumer that books into a database, killed in the middle of that: `… POINT WHOLE|SPLIT PROGRAM`.

`POINTS` are steps of the second transaction of its life: so it has booked something, and more is to come. SPLIT plants
the fault that one transaction is there to prevent: which records were had, and the offset, are stored in another one.
"""

import os
import runpy
import signal
import sqlite3
import sys
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal

__all__ = ["POINTS"]

POINTS: Final = ("in the middle of the sales", "when all is sold", "before the commit", "after the commit")
_WHICH = 2  # of the transactions of a life
_SALES = 5  # some before that one, and more after it


class _Dying(sqlite3.Connection):
    """Comes to a point, and is no more."""

    point = ""
    split = False
    _begun = _sales = 0
    _apart = False

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if sql.startswith("BEGIN"):
            self._begun, self._sales, self._apart = self._begun + 1, 0, False
        elif sql.startswith("INSERT INTO sold"):
            self._sales += 1
            if self._sales == _SALES:
                self._reached("in the middle of the sales")
        elif sql.startswith(("DELETE FROM had", "INSERT OR REPLACE INTO offsets")):
            self._begin_another()
            self._reached("when all is sold")
        return super().execute(sql, *arguments)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self._reached("before the commit")
        left = super().__exit__(kind, error, trace)
        self._reached("after the commit")
        return left

    def _begin_another(self) -> None:
        if self.split and not self._apart:
            self._apart = True
            super().execute("COMMIT")
            super().execute("BEGIN IMMEDIATE")

    def _reached(self, point: str) -> None:
        if point == self.point and self._begun == _WHICH:
            os.kill(os.getpid(), signal.SIGKILL)


def _main() -> None:
    _, _Dying.point, how, program = sys.argv
    assert _Dying.point in POINTS
    _Dying.split = how == "SPLIT"
    vars(sqlite3)["connect"] = partial(sqlite3.connect, factory=_Dying)
    sys.argv = [program]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    _main()
