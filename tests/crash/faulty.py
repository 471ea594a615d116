"""A program as it stands, with a fault in the library: `python -m tests.crash.faulty FAULT PROGRAM ARGUMENT …`."""

import runpy
import sys

from tests.crash import planted

if __name__ == "__main__":
    _, fault, program, *arguments = sys.argv
    planted.plant(fault)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
