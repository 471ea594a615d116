"""Options of ours as Spark hands them over: texts, their names in lower case, with some that Spark adds."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["NUMBER", "number", "refuse_unknown"]

NUMBER = re.compile(r"-?[0-9]{1,19}")  # more digits are out of every range, and Python refuses thousands
_ALIKE = 0.6  # as difflib has it: what is less alike is no slip of that name


def refuse_unknown(
    options: Mapping[str, str], known: Sequence[str], sparks: Collection[str], prefixed: Mapping[str, Collection[str]]
) -> None:
    """Refuse what would be passed over in silence; ``sparks`` are added by Spark.

    ``prefixed``: names that stand behind a prefix; what bears it is looked at elsewhere.

    Raises:
        ConfigError: an option is none of these; the message names the one that is most like it.

    """
    meant = {name: name for name in known}
    for prefix, names in prefixed.items():
        meant |= {
            spelled: f"{prefix}{name}" for name in names for spelled in (f"{prefix}{name}", name) if name not in known
        }
    for name in options:
        if name.lower() in {*known, *sparks} or name.lower().startswith(tuple(prefixed)):
            continue
        near = difflib.get_close_matches(name.lower(), meant, n=1, cutoff=_ALIKE)
        there = [*known, *(f"{prefix}..." for prefix in prefixed)]
        remedy = f"did you mean {meant[near[0]]}?" if near else f"leave it out, there are {', '.join(there)}"
        raise ConfigError(f"unknown option: {remedy} option={name}")


def number(options: Mapping[str, str], name: str, default: int, unit: str, least: int, most: int) -> int:
    """A whole number from ``least`` to ``most``.

    Raises:
        ConfigError: it is none, or out of range.

    """
    text = options.get(name)
    if text is None:
        return default
    found = int(text) if NUMBER.fullmatch(text) else None
    if found is None or not least <= found <= most:
        raise ConfigError(f"{name} must be a number of {unit} from {least} to {most} {name}={text!r:.100}")
    return found
