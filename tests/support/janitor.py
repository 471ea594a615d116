"""A process that outlives the tests by a moment: it kills their brokers and removes the brokers' files.

It runs as a script, `janitor.py <process id of the tests> <directory>`, and kills the processes whose ids
stand in `<directory>/*/pid`. No atexit handler would run after a `kill -9` of the tests, which is an ordinary
thing here. PR_SET_PDEATHSIG would, but it belongs to the *thread* that started the broker: a node restarted
through `asyncio.to_thread` would die at the end of its test.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

_LOOK_EVERY_S = 0.5


def _main(watched: int, directory: Path) -> None:
    # A process whose parent is gone gets another one. This also holds where the parent's forked children live
    # on, which would keep a pipe open.
    while os.getppid() == watched:
        time.sleep(_LOOK_EVERY_S)
    for pid_file in directory.glob("*/pid"):
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]), Path(sys.argv[2]))
