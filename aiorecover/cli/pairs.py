"""Options of others on the command line, as ``name=value``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorecover.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["pairs"]


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """``["a=1"]`` as ``{"a": "1"}``.

    Raises:
        ConfigError: there is one without a name or without a ``=``.

    """
    wrong = [text for text in texts if "=" not in text or text.startswith("=")]
    if wrong:
        raise ConfigError(f"such an option is name=value: {wrong=}")
    return dict(text.split("=", 1) for text in texts)
