"""Runs a handler at any one place where CPython may run a signal handler.

CPython looks for signals at a few kinds of places only: after calls, at the start of functions and at jumps backwards.
`Interruption` counts those that an action goes through in the write-ahead log, and runs a handler at one of them. So a
test can go through all of them one by one, and nothing is left to chance.
"""

import dis
import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, Self

from aiorecover import wal

PACKAGE = str(Path(str(wal.__file__)).parent)


@cache
def places(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions before which CPython may run a signal handler."""
    instructions = list(dis.get_instructions(code))
    behind = {
        following.offset
        for instruction, following in itertools.pairwise(instructions)
        if instruction.opname.startswith("CALL") or instruction.opname == "RESUME"
    }
    back = {int(step.argval) for step in instructions if "BACKWARD" in step.opname}
    return frozenset(behind | back)


class Interruption:
    """Runs ``handler`` at the ``at``-th place where a signal handler may run, and counts these places."""

    def __init__(self, handler: Callable[[], None], at: int):
        self.handler = handler
        self.at = at
        self.count = 0

    def __enter__(self) -> Self:
        self._watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()

    def _reached(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.handler()

    if sys.version_info >= (3, 12):

        def _watch(self) -> None:
            monitoring = sys.monitoring
            monitoring.use_tool_id(monitoring.PROFILER_ID, "interruption")
            monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.INSTRUCTION, self._at)
            for code in _codes():
                monitoring.set_local_events(monitoring.PROFILER_ID, code, monitoring.events.INSTRUCTION)

        def _at(self, code: CodeType, offset: int) -> None:
            if offset in places(code):
                self._reached()

        def _leave(self) -> None:
            monitoring = sys.monitoring
            for code in _codes():
                monitoring.set_local_events(monitoring.PROFILER_ID, code, 0)
            monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.INSTRUCTION, None)
            monitoring.free_tool_id(monitoring.PROFILER_ID)

    else:

        def _watch(self) -> None:
            self._before = sys.gettrace()
            sys.settrace(self._trace)

        def _leave(self) -> None:
            sys.settrace(self._before)

        def _trace(self, frame: FrameType, event: str, _: object) -> Any:
            code = frame.f_code
            if event != "call" or not code.co_filename.startswith(PACKAGE):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
            here = places(code)  # once a call: to look a code up, all of it is hashed

            def step(frame: FrameType, event: str, _: object) -> Any:
                if event == "opcode" and frame.f_lasti in here:
                    self._reached()
                    if self.count == self.at:
                        self._leave()  # what follows is nobody's business, and slow to watch
                return step

            return step


@cache
def _codes() -> tuple[CodeType, ...]:
    """The code of every function of the package, with what is defined inside of it."""
    functions = [thing for thing in gc.get_objects() if isinstance(thing, FunctionType)]
    outer = {function.__code__ for function in functions if function.__code__.co_filename.startswith(PACKAGE)}
    return tuple({code for found in outer for code in _with_inner(found)})


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
