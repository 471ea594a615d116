"""The command line; docs/command_line.md lists its commands.

It needs the extra ``cli``, the demo also ``demo``, ``audit`` of tables and ``land`` also ``spark``.
"""

import sys

__all__ = ["main"]

_INTERRUPTED = 130
_NEEDED = {"rich", "typer"}
_INSTALL = "the aiorecover command needs typer and rich: pip install 'aiorecover[cli]', for the demo 'aiorecover[demo]'"


def main() -> None:
    """Run the command line; exit status 2 and one sentence when typer or rich are not installed.

    What Ctrl-C interrupts before a command can deal with it, for instance while modules are loaded, is status 130.
    """
    try:
        from aiorecover.cli.app import app  # noqa: PLC0415 - optional dependencies, needed only here
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(_INSTALL + "\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    app()
