"""Tasks, threads, descriptors and mappings of this process, counted before and after, to find what was left over."""

import asyncio
import os
import threading
from pathlib import Path

POOL = "asyncio_"  # threads of the loop's own pool (`asyncio.to_thread`): they stay with the loop


class Census:
    """The tasks, threads, descriptors and mappings of this moment; compare two with `left_since`."""

    def __init__(self, path: Path) -> None:
        """Count the mappings of files below ``path``, and no others."""
        self._path = path
        self.tasks = {task for task in asyncio.all_tasks() if not task.done()}
        self.threads = set(threading.enumerate())
        self.descriptors = _descriptors()
        maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        self.mappings = {line for line in maps if str(path) in line}

    def left_since(self) -> list[str]:
        """Name what is there now and was not there then."""
        now = Census(self._path)
        return [
            *(f"task {task.get_name()} {task.get_coro()}" for task in now.tasks - self.tasks),
            *(f"thread {name}" for thread in now.threads - self.threads if not (name := thread.name).startswith(POOL)),
            *(f"descriptor {number} {target}" for number, target in now.descriptors - self.descriptors),
            *(f"mapping {line}" for line in now.mappings - self.mappings),
        ]


def _descriptors() -> set[tuple[str, str]]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add((link.name, os.readlink(link)))  # noqa: PTH115 - a socket is no path
        except FileNotFoundError:  # the listing's own
            continue
    return found
