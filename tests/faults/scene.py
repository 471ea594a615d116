"""Runs one scenario in a process of its own, on a machine that misbehaves.

`play(scenario, place)` starts `python -m tests.faults.scene <module> <function> <place> <arguments as JSON>` and
holds its exit status against what is promised. A process of its own, because a fault may end in a signal (a store
through a mapping without a block behind it is SIGBUS), because mounts stay in its own namespace, and because libfiu
and libfaketime are preloaded. The scenario is `async def scenario(place, *arguments)`; what it asserts is what counts.

What a kernel does not grant is looked for with a probe, and skips with the kernel's own words. What a package brings
is installed in CI, so there its absence fails.
"""

import asyncio
import functools
import importlib
import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

__all__ = ["LIBFIU", "fuse", "libfaketime", "libfiu", "loop_disk", "mounting", "play", "small_disk", "tool"]

REPOSITORY = Path(__file__).parents[2]
WITHIN = 80  # seconds for one scenario, below the time limit of a test
LIBFIU = "libfiu.so.0"
_PRELOAD = {
    "libfiu": ("fiu_posix_preload.so", ("/usr/lib/fiu", "/usr/local/lib/fiu", "/usr/lib/x86_64-linux-gnu/fiu")),
    "libfaketime": (
        "libfaketimeMT.so.1",
        ("/usr/lib/x86_64-linux-gnu/faketime", "/usr/lib/aarch64-linux-gnu/faketime", "/usr/lib64/faketime"),
    ),
}

Scenario = Callable[..., Coroutine[Any, Any, None]]


def play(
    scenario: Scenario,
    place: Path,
    *arguments: Any,
    prefix: Sequence[str] = (),
    env: dict[str, str] | None = None,
    status: Sequence[int] = (0,),
) -> subprocess.CompletedProcess[str]:
    """Run ``scenario(place, *arguments)``; it must end with one of these exit statuses (negative: a signal)."""
    words = [scenario.__module__, scenario.__name__, str(place), json.dumps(arguments)]
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "tests.faults.scene", *words],
        cwd=REPOSITORY,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    code = done.returncode
    name = signal.Signals(-code).name if code < 0 else str(code)
    assert code in status, f"ended with {name}:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    if code == 0:
        assert done.stdout.splitlines()[-1:] == ["well"], done.stdout
    return done


def tool(name: str) -> str:
    """The path of a program that CI installs."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    return found if found is not None else _absent(name)


def libfiu() -> dict[str, str]:
    """The environment in which system calls can be made to fail."""
    return {"LD_PRELOAD": _library("libfiu")}


def libfaketime() -> dict[str, str]:
    """The environment in which the system clock can be set."""
    return {"LD_PRELOAD": _library("libfaketime")}


def mounting(command: str, place: Path) -> list[str]:
    """The words before a command under which ``place`` (``$0``) was mounted by the shell's ``command``."""
    words = _namespace()
    return [*words, "sh", "-c", f'{command} && exec "$@"', str(place)]


def small_disk(place: Path, options: str = "size=1m") -> list[str]:
    """The words before a command under which ``place`` is a file system of its own in memory, of 1 MiB."""
    return mounting(f'mount -t tmpfs -o {options} none "$0"', place)


def loop_disk(place: Path) -> list[str]:
    """The words before a command under which ``place/disk`` is an ext4 of its own, in the file ``place/image``."""
    image = place / "image"
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run([tool("mkfs.ext4"), "-q", str(image)], check=True)
    (place / "disk").mkdir()
    command = 'mount -o loop "$0/image" "$0/disk"'
    words = mounting(command, place)
    done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this kernel has no loop device for us: {done.stderr.strip()}")
    return words


@functools.cache
def fuse() -> list[str]:
    """The words before a command under which `flaky.flaky` can mount."""
    words = _namespace()
    tool("fusermount3")
    if importlib.util.find_spec("mfusepy") is None:
        _absent("mfusepy")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"this kernel has no fuse for us: {error}")
    return words


@functools.cache
def _namespace() -> list[str]:
    told = ""
    for words in (["unshare", "-m"], ["unshare", "-rm"]):
        command = [tool(words[0]), *words[1:]]
        mount = [*command, "sh", "-c", "mount -t tmpfs none /mnt"]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return command
        told = done.stderr.strip()
    pytest.skip(f"this kernel does not let us mount: {told}")


def _library(package: str) -> str:
    name, folders = _PRELOAD[package]
    found = [path for folder in folders if (path := Path(folder) / name).exists()]
    return str(found[0]) if found else _absent(package)


def _absent(package: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(f"{package} is not installed, and CI installs it: see .ci/run")
    pytest.skip(f"{package} is not installed: see .ci/run for the package")


def main() -> None:
    module, name, place, arguments = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(levelname)s %(name)s: %(message)s")
    scenario: Scenario = getattr(importlib.import_module(module), name)
    asyncio.run(asyncio.wait_for(scenario(Path(place), *json.loads(arguments)), WITHIN - 10))
    print("well", flush=True)


if __name__ == "__main__":
    main()
