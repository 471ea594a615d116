"""Run one scenario in a process of its own, with mounts of its own.

`play(scenario, place)` starts ``python -m tests.faults.scene MODULE FUNCTION PLACE ARGUMENTS``. A process of its own,
because a fault may end in a signal (a store through a mapping without a block behind it is SIGBUS), and because mounts
stay in its namespace. The scenario is ``async def scenario(place, *arguments)``; what it asserts is what counts.

Where the kernel lets this user mount nothing, `small_disk` and `mounting` skip with the kernel's own words.
"""

import asyncio
import functools
import importlib
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["mounting", "play", "small_disk"]

REPOSITORY = Path(__file__).parents[2]
WITHIN = 80  # seconds for one scenario, below the time limit of a test

Scenario = Callable[..., Coroutine[Any, Any, None]]


def play(scenario: Scenario, place: Path, *arguments: Any, prefix: Sequence[str] = ()) -> None:
    """Run ``scenario(place, *arguments)``, whose arguments fit JSON, after the words ``prefix``."""
    words = [scenario.__module__, scenario.__name__, str(place), json.dumps(arguments)]
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.faults.scene", *words],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    code = done.returncode
    name = signal.Signals(-code).name if code < 0 else str(code)
    assert code == 0, f"ended with {name}:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    assert done.stdout.splitlines()[-1:] == ["well"], done.stdout


def mounting(command: str, place: Path) -> list[str]:
    """Return the words before a command under which ``place`` (``$0``) was mounted by the shell's ``command``."""
    return [*_namespace(), "sh", "-c", f'{command} && exec "$@"', str(place)]


def small_disk(place: Path, options: str = "size=1m") -> list[str]:
    """Return the words before a command under which ``place`` is a file system of its own in memory, of 1 MiB."""
    return mounting(f'mount -t tmpfs -o {options} none "$0"', place)


@functools.cache
def _namespace() -> list[str]:
    told = ""
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        mount = [*command, "sh", "-c", "mount -t tmpfs none /mnt"]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return command
        told = done.stderr.strip()
    pytest.skip(f"this kernel does not let us mount: {told}")


def main() -> None:
    module, name, place, arguments = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(levelname)s %(name)s: %(message)s")
    scenario: Scenario = getattr(importlib.import_module(module), name)
    asyncio.run(asyncio.wait_for(scenario(Path(place), *json.loads(arguments)), WITHIN - 10))
    print("well", flush=True)


if __name__ == "__main__":
    main()
