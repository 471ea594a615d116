"""Instance directories on real files, and another process that goes on with them."""

import faulthandler
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from aiorecover.wal.directory import Directory, Options
from aiorecover.wal.opening import open_directory
from tests.wal.ledger import demand
from tests.wal.rig import MAX_SLOTS, SLOT

Opens = Callable[..., Directory]


@contextmanager
def real_files() -> Iterator[tuple[Path, Opens]]:
    """A place, and what opens instance directories below ``wal`` in it; all is gone when this is over."""
    opened: list[Directory] = []
    with TemporaryDirectory() as place:
        options = Options(Path(place, "wal"), SLOT, MAX_SLOTS * SLOT, 0)

        def opens(**more: Any) -> Directory:
            opened.append(open_directory(replace(options, **more)))
            return opened[-1]

        try:
            yield Path(place), opens
        finally:
            for directory in opened:
                directory.close()


def forked(act: Callable[[], object]) -> int:
    """A child that does this, and then ends with 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads: the child has none
        child = os.fork()
    if child:
        return child
    with suppress(BaseException):
        faulthandler.disable()  # a signal is what is looked for
        act()
        os._exit(0)
    os._exit(1)


def ends_well(child: int, promise: str) -> None:
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    demand(ended == 0, promise, ended)
