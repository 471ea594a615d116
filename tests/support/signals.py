"""The signals that another process catches or ignores."""

from pathlib import Path

__all__ = ["handles", "ignores"]


def handles(pid: int, number: int) -> bool:
    """Whether it has a handler by now (proc(5): bit ``number - 1`` of ``SigCgt``)."""
    return _has(pid, "SigCgt:", number)


def ignores(pid: int, number: int) -> bool:
    """Whether it ignores the signal (``SigIgn``, likewise)."""
    return _has(pid, "SigIgn:", number)


def _has(pid: int, name: str, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith(name))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)
