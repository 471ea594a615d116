"""Sentences about what an audit found, for the printed lines and for the page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

__all__ = [
    "WRONG",
    "conflicts",
    "fewer_without_id",
    "held_up",
    "is_whole",
    "lost",
    "not_known",
    "not_landed",
    "sequences",
    "time_of",
    "without_id",
]

WRONG = "not_in_table", "lost", "untold"
"""Verdicts that fail an audit: the record should be there, or no manifest tells of it."""


def is_whole(found: dict[str, Any]) -> bool:
    """Whether no record is missing (with manifests: lost), absent from the table, or in conflict.

    Records that an open transaction holds up are in Kafka, and none of these.
    """
    totals = found["totals"]
    if "manifests" in found:
        wrong = lost(found["manifests"]["totals"])
    else:
        wrong = totals["missing"] - totals["behind_open_transaction"]
    absent = found["compared"]["totals"]["absent"] if "compared" in found else 0
    return not (wrong or absent or totals["conflicts"])


def sequences(epoch: dict[str, Any]) -> str:
    """Return the first and the last sequence that were found."""
    return "none found" if epoch["first"] is None else f"{epoch['first']}-{epoch['last']}"


def not_known(totals: dict[str, Any]) -> list[str]:
    """Return a sentence about each kind of epochs whose end no manifest tells."""
    return [said for said in (_open(totals), _untold(totals)) if said]


def _open(totals: dict[str, Any]) -> str:
    count = totals.get("open_epochs", 0)
    if not count:
        return ""
    since_ms = totals["open_told_ms"]
    which = f"{totals['open_oldest']}, reported at {'?' if since_ms is None else time_of(since_ms // 1000)} UTC"
    if count == 1:
        return (
            f"1 epoch is open, {which}: what it accepted since is not known here; look at its directory with "
            "aiorecover status"
        )
    return (
        f"{count:,} epochs are open, the oldest, {which}: what they accepted since is not known here; look at their "
        "directories with aiorecover status"
    )


def _untold(totals: dict[str, Any]) -> str:
    count = totals.get("untold_epochs", 0)
    if not count:
        return ""
    which, who = ("1 epoch was", "it") if count == 1 else (f"{count:,} epochs were", "they")
    return (
        f"{which} found that no manifest tells of: what {who} accepted behind the last record found is not known here; "
        "give the producers audit_topic"
    )


def conflicts(totals: dict[str, Any]) -> str:
    """Return a sentence about ids that several different records have; empty where there are none."""
    if not totals["conflicts"]:
        return ""
    return (
        f"{totals['conflicts']:,} ids stand on several records that differ in topic, key, value or headers: a program "
        "forwards records with all their headers; leave out aiorecover-id there"
    )


def held_up(totals: dict[str, Any]) -> list[str]:
    """Return a sentence about what an open transaction holds up, if there is one."""
    if not totals["held_offsets"]:
        return []
    held, behind = totals["held_offsets"], totals["behind_open_transaction"]
    said = (
        f"{held:,} offsets are held up by an open transaction, {behind:,} of the missing records among them: they are "
        "in Kafka, and readers get them once it ends; kafka-transactions.sh find-hanging finds one that does not"
    )
    return [said]


def lost(verdicts: dict[str, int]) -> int:
    """Return the number of records with one of the verdicts in `WRONG`."""
    return sum(verdicts.get(verdict, 0) for verdict in WRONG)


def without_id(totals: dict[str, Any]) -> str:
    """Return a sentence about records without an id, and how to see them; empty where there are none."""
    if not totals["without_id"]:
        return ""
    return (
        "without an id: another program writes to these topics, or the header aiorecover-id is none of ours (land puts "
        "these into quarantine); no other count has them, parse_record_id(df).where('sequence is null') shows them"
    )


def not_landed(verdicts: dict[str, Any]) -> str:
    """Return what to do where a table alone does not tell whether records are lost; empty where it lacks none."""
    if not verdicts.get("not_in_table"):
        return ""
    return (
        "not in the table: these were in Kafka; name their topics, too (--topic), to see whether they are still to be "
        "landed, or lost"
    )


def fewer_without_id(compared: dict[str, Any]) -> str:
    """Return what it may mean that a table has fewer records without an id than its topics; empty where it has not."""
    count = compared["without_id_absent"]
    if not count:
        return ""
    return (
        f"without an id: the table has {count:,} fewer than the topics; they may be still to be landed, in the "
        "quarantine of land (an aiorecover-id that is none), or lost: which they are, nothing tells"
    )


def time_of(second: int) -> str:
    """Return a second since 1970 as date and time in UTC."""
    try:
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a producer may stamp what it likes, microseconds for milliseconds
        return f"{second:,} s since 1970"
