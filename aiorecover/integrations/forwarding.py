"""Headers of consumed records, to be published again: `aiorecover` sets its own, and needs no extra here.

>>> await producer.publish("copies", record.value, headers=forwarded(record.headers))  # doctest: +SKIP
"""

from collections.abc import Iterable
from typing import Final

__all__ = ["SOURCE_HEADER", "forwarded"]

ID_HEADER: Final = "aiorecover-id"
SOURCE_HEADER: Final = "aiorecover-source"


def forwarded(headers: Iterable[tuple[str, bytes | None]]) -> list[tuple[str, bytes | None]]:
    """Return the headers of a record that is published once more, which gets an id of its own.

    The id that it had, of this or another producer of ours, is kept under ``aiorecover-source``, where the last
    forwarder's stands; all other headers stay as they are.
    """
    given = list(headers)
    ids = [value for name, value in given if name == ID_HEADER]
    kept = [(name, value) for name, value in given if name not in ({ID_HEADER, SOURCE_HEADER} if ids else {ID_HEADER})]
    return kept + [(SOURCE_HEADER, value) for value in ids[-1:]]
