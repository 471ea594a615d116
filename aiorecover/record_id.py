"""Record ids, read from the headers of consumed records."""

import re
from collections.abc import Iterable

RECORD_ID_HEADER = "aiorecover-id"
EPOCH_MAX = (1 << 31) - 1  # openings of one directory: one a second for 68 years
SEQUENCE_MAX = 10**16 - 1  # records of one opening: a million a second for 300 years

ID_PATTERN = "([a-z2-7]{13})/([1-9][0-9]{0,9})/([1-9][0-9]{0,15})"  # an id has one spelling

_ID = re.compile(ID_PATTERN)


def parse_record_id(text: str) -> tuple[str, int, int] | None:
    """Return producer id, epoch and sequence; None: the text is no record id."""
    parts = _ID.fullmatch(text)
    if parts is None or int(parts[2]) > EPOCH_MAX or int(parts[3]) > SEQUENCE_MAX:
        return None
    return parts[1], int(parts[2]), int(parts[3])


def record_id_of(headers: Iterable[tuple[str, bytes | None]] | None) -> str | None:
    """Return the record id in the headers of a consumed record (aiokafka's ``record.headers``); None: it has none.

    The last one counts: a record that is passed on with the headers of its source gets its own after them.
    """
    found = None
    for name, content in headers or ():
        if name == RECORD_ID_HEADER:
            found = content
    text = (found or b"").decode("ascii", "replace")
    return text if parse_record_id(text) else None
