"""A time limit that a call was given: checked, and in seconds."""

from aiorecover.errors import ConfigError

LONGEST_MS = 10**12  # 30 years: what is longer is a mistake, of the unit perhaps


def seconds_of(timeout_ms: object) -> float | None:
    """The limit in seconds; None: there is none.

    Raises:
        ConfigError: it is no number of milliseconds.

    """
    if timeout_ms is None:
        return None
    if not isinstance(timeout_ms, int | float) or isinstance(timeout_ms, bool):
        message = "timeout_ms must be a number of milliseconds, or None"
        raise ConfigError(f"{message} type={type(timeout_ms).__qualname__} timeout_ms={timeout_ms!r:.100}")
    if not 0 <= timeout_ms <= LONGEST_MS:  # nor NaN
        raise ConfigError(
            f"timeout_ms must be from 0 to {LONGEST_MS} milliseconds, or None timeout_ms={timeout_ms!r:.100}"
        )
    return timeout_ms / 1000
