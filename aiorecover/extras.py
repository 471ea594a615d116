"""Packages that an extra installs: where one is missing, the error says how to have it."""

from collections.abc import Iterator
from contextlib import contextmanager

from aiorecover.errors import ConfigError


class NotInstalledError(ConfigError, ModuleNotFoundError):
    """A package that an extra installs is missing."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import what the extra ``name`` installs.

    Raises:
        NotInstalledError: a module is missing.

    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise NotInstalledError(f"{error.name} is not installed: pip install 'aiorecover[{name}]'") from error
