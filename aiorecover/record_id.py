"""The id of a record, read back from what Kafka gives."""

import re
from collections.abc import Iterable

from aiorecover.record import RECORD_ID_HEADER
from aiorecover.wal.format import EPOCH_MAX, SEQUENCE_MASK

ID_PATTERN = "([a-z2-7]{13})/([1-9][0-9]{0,6})/([1-9][0-9]{0,12})"  # no other spelling of the numbers: one text each

_ID = re.compile(ID_PATTERN)


def parse_record_id(text: str) -> tuple[str, int, int] | None:
    """Producer id, epoch and sequence; None: no id of ours, which has one text only."""
    parts = _ID.fullmatch(text)
    if parts is None or int(parts[2]) > EPOCH_MAX or int(parts[3]) > SEQUENCE_MASK:
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
