"""Inside the guest, `python -m tests.power.guest ORDERS`: recover, tell what is there, publish until the kernel dies.

    /dev/vdb    the disk in question, mounted at /data
    /dev/vdc    the answer: eight bytes of length, and `Found` as JSON; durable before anything is published
    /dev/ttyS0  what `tests.power.workload` says, and one line before and after it

The kernel dies by ``sysrq b``: the machine is reset at once, nothing is written back; what the disk had not been told
is gone. Or the host kills QEMU in mid-instruction, which is the same for the guest's memory.
"""

import asyncio
import json
import os
import struct
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

from tests.power.recovery import recover
from tests.power.workload import Publishing, Task, Witness

__all__ = ["main"]

_CONSOLE = "/dev/ttyS0"
_WAL_DIR = "/data/wal"
_ANSWER = "/dev/vdc"


def main() -> None:
    """Carry out the orders of this boot."""
    orders = json.loads(Path(sys.argv[1]).read_text(encoding="ascii"))
    task = Task(**{**orders["task"], "wal_dir": _WAL_DIR, "said": _CONSOLE})
    try:
        _answer(task.options["slot_bytes"])
        if orders["publish"]:
            _publish(task, orders["crash_after_s"])
    except BaseException as error:  # the host reads it and stops
        print(f"! {type(error).__name__}: {error}", flush=True)
        raise
    finally:
        time.sleep(0.2)  # the console gets rid of its last line
        Path("/proc/sysrq-trigger").write_text("b", encoding="ascii")


def _answer(slot_bytes: int) -> None:
    found = json.dumps(asdict(recover(Path(_WAL_DIR), slot_bytes))).encode()
    descriptor = os.open(_ANSWER, os.O_WRONLY)
    os.pwrite(descriptor, struct.pack("<Q", len(found)) + found, 0)
    os.fsync(descriptor)
    os.close(descriptor)
    print("recovered", flush=True)


def _publish(task: Task, crash_after_s: float | None) -> None:
    """``crash_after_s`` None: the host kills us."""
    witness = Witness(task.said, None)
    if crash_after_s is not None:
        threading.Thread(target=_crash, args=[crash_after_s], daemon=True).start()
    asyncio.run(Publishing(task, witness).run())


def _crash(after_s: float) -> None:
    """Armed before the directory is opened: the opening can be hit as well."""
    trigger = os.open("/proc/sysrq-trigger", os.O_WRONLY)
    time.sleep(after_s)
    os.write(trigger, b"b")


if __name__ == "__main__":
    main()
