"""A start that clears the files of a landing away while that is at work, as if a killed attempt had left them."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

__all__ = ["clears_as_before"]


@contextmanager
def clears_as_before(target: Path) -> Iterator[None]:
    """Once, in the first batch of the target, what its ended tasks have written; the batch has to have many tasks."""
    staging, ended, cleared = target / "_staging", threading.Event(), list[Path]()

    def clear() -> None:
        while not (ended.is_set() or cleared):
            tasks = {path.parent for path in staging.glob("0-*/_temporary/0/task_*/*.parquet") if _has_rows(path)}
            cleared.extend(tasks)
            time.sleep(0.001)
        for path in cleared:
            shutil.rmtree(path)

    other = threading.Thread(target=clear)
    other.start()
    try:
        yield
    finally:
        ended.set()
        other.join()
    assert cleared, "no task had ended while it looked"


def _has_rows(path: Path) -> bool:
    """Most tasks of a small batch have none."""
    return bool(pq.read_metadata(path).num_rows)
