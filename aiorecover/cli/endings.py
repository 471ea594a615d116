"""Ends of a command that are neither its result nor a wrong option."""

from __future__ import annotations

__all__ = ["EndedError", "StoppedError"]

_BY_SIGNAL = 128  # what shells add to the number of the signal that has ended a process


class EndedError(Exception):
    """It has ended with this exit status; the last line of the message says in one sentence why."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class StoppedError(EndedError):
    """A signal has ended it; nothing of it runs any more."""

    def __init__(self, number: int, message: str = "stopped") -> None:
        super().__init__(message, _BY_SIGNAL + number)
        self.number = number
