"""The command line; docs/command_line.md lists its commands.

It needs the extra ``cli``, the demo also ``demo``, ``audit`` of tables and ``land`` also ``spark``.
"""

import os
import sys
from pathlib import Path

from aiorecover.extras import NotInstalledError, extra

__all__ = ["main"]

_INTERRUPTED = 130


def main() -> None:
    """Run the command line; exit status 2 and one sentence when typer or rich are not installed.

    What Ctrl-C interrupts before a command can deal with it, for instance while modules are loaded, is status 130.
    """
    try:
        with extra("cli"):
            from aiorecover.cli.app import app  # noqa: PLC0415 - optional dependencies, needed only here
    except NotInstalledError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    if sys.stdout is None:  # started with >&-: only the exit status is wanted
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - while the process lives
    app()
