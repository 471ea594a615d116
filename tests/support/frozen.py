"""A process that is stopped by a signal: its connections stay open, and nothing answers."""

import os
import signal

__all__ = ["freeze"]


def freeze(pid: int) -> None:
    """`SIGSTOP` to a child; returns when it stands still.

    `kill` alone returns earlier: on a busy machine the child answers one more request, and what was to be in doubt
    has arrived.
    """
    os.kill(pid, signal.SIGSTOP)
    # WNOWAIT leaves the state to be read again by Popen, WEXITED ends the wait if the process died of its own.
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
