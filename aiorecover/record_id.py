"""The id of a record, read back from what Kafka gives."""

import re
from collections.abc import Iterable

RECORD_ID_HEADER = "aiorecover-id"
EPOCH_MAX = (1 << 31) - 1  # openings of one directory: one a second for 68 years
SEQUENCE_MAX = 10**16 - 1  # records of one opening: a million a second for 300 years

ID_PATTERN = "([a-z2-7]{13})/([1-9][0-9]{0,9})/([1-9][0-9]{0,15})"  # no other spelling of the numbers: one text each

_ID = re.compile(ID_PATTERN)


def parse_record_id(text: str) -> tuple[str, int, int] | None:
    """Producer id, epoch and sequence; None: no id of ours, which has one text only."""
    parts = _ID.fullmatch(text)
    if parts is None or int(parts[2]) > EPOCH_MAX or int(parts[3]) > SEQUENCE_MAX:
        return None
    return parts[1], int(parts[2]), int(parts[3])


def record_id_of(headers: Iterable[tuple[str, bytes | None]] | None) -> str | None:
    """The record id among the headers of a consumed record (aiokafka's ``record.headers``); None: it has none.

    Of several the last one counts: a record that is passed on with the headers of its source gets its own behind them.
    """
    found = None
    for name, content in headers or ():
        if name == RECORD_ID_HEADER:
            found = content
    text = (found or b"").decode("ascii", "replace")
    return text if parse_record_id(text) else None
