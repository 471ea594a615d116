"""What another process does with a signal."""

from pathlib import Path

__all__ = ["handles"]


def handles(pid: int, number: int) -> bool:
    """Whether it has a handler by now (proc(5): bit ``number - 1`` of ``SigCgt``)."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
