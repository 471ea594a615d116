"""The machine of a run: figures mean nothing without it."""

import os
import platform
import shutil
import subprocess
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.figures import quantiles

_PACKAGES = ("aiorecover", "aiokafka", "confluent-kafka", "uvloop", "msgspec", "isal", "cramjam")
_ROOT = Path(__file__).parents[1]
_GIB = 1 << 30


def facts(kafka: str, directory: str | None) -> dict[str, Any]:
    """Everything about this machine that a figure depends on; ``kafka`` describes the cluster."""
    place = Path(directory or tempfile.gettempdir()).resolve()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
        "kafka": kafka,
        "wal": f"{_file_system(place)} at {place}",
        "load_average": load_average(),
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items())
    return [
        f"{found['cpu']}, {found['cores']} core(s), {found['memory_gb']} GB, {found['kernel']}, {found['python']}",
        f"{packages}; commit {found['commit']}",
        f"{found['kafka']}; write-ahead log on {found['wal']}",
        f"load average at the start: {found['load_average']}",
    ]


def load_average() -> str:
    """How busy the machine is with this and everything else."""
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


def clock_ns() -> int:
    """The median of what the clock shows between two readings with nothing in between."""
    clock = time.perf_counter_ns
    return quantiles([-(clock() - clock()) for _ in range(100_000)])["p50"]


def _cpu_model() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or "unknown"
    return next(
        (line.partition(":")[2].strip() for line in described.splitlines() if line.startswith("model name")),
        "unknown",
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    told = subprocess.run(
        [git, "describe", "--always", "--dirty"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or "unknown"


def _file_system(place: Path) -> str:
    """The type of the file system: a write-ahead log on tmpfs proves nothing about fdatasync."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    holding = [(point, kind) for point, kind in mounts if place.is_relative_to(point)]
    return max(holding, default=("", "unknown"), key=lambda mount: len(mount[0]))[1]
