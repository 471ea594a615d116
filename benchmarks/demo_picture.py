"""Draw docs/demo.svg from a run of the demo: ``python -m benchmarks.demo_picture``, half a minute."""

import io
import re
from pathlib import Path

import uvloop

from aiorecover.cli.demo.command import Options, run
from aiorecover.cli.demo.view import View, show_verdict
from aiorecover.cli.endings import Output

TARGET = Path(__file__).parent.parent / "docs" / "demo.svg"
WIDTH = 92
FONTS = re.compile(
    r"@font-face \{.*?\}|Fira Code,", re.DOTALL
)  # rich's, from the web: every reader has one of this kind


def main() -> None:
    """Run it, and save what it prints."""
    console = Output(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True)
    outcome = uvloop.run(run(Options(60_000, 4_000, None, None, None, seed=1), View(console)))
    show_verdict(console, outcome)
    assert outcome.verdict.good, outcome
    picture = console.export_svg(title="make demo", unique_id="demo")
    TARGET.write_text(FONTS.sub("", picture), encoding="utf-8")


if __name__ == "__main__":
    main()
