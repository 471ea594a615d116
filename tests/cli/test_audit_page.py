"""The page of an audit: read back as a browser would, without a network."""

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from aiorecover.cli.auditing import page as audit_page

START_S = 1_700_000_000
Moments = list[tuple[int | None, int, int]]
SVG = "{*}svg"
HELD = "held_offsets", "behind_open_transaction"


def found(moments: Moments, **more: Any) -> dict[str, Any]:
    here, lost = sum(one[1] for one in moments), sum(one[2] for one in moments)
    totals = {"records": here, "without_id": 3, "epochs": 1, "expected": here + lost, "found": here, "missing": lost}
    epoch = {"producer_id": "<b>&", "epoch": 1, "expected": here + lost, "found": here, "missing": lost, "repeated": 1}
    epoch |= {"first": 3, "last": 2_000} if here else {"first": None, "last": None}
    return {
        "totals": totals | {"repeated": 1, "out_of_order": None, "conflicts": 0, **dict.fromkeys(HELD, 0)},
        "epochs": [epoch | {"out_of_order": None}],
        "missing": [{"producer_id": "<b>&", "epoch": 1, "first": 1_000, "last": 1_999, "count": 1_000}],
        "repeated": [],
        "out_of_order": [],
        "conflicts": [],
        "timeline": {
            "width_s": 60,
            "moments": [
                {"start_s": at if at is None else START_S + at, "found": count, "missing": gone}
                for at, count, gone in moments
            ],
        },
        **more,
    }


def page(found: dict[str, Any]) -> str:
    return audit_page.page(found, {"topics": "<orders>, payments", "made": "2026-11-26 05:00:07 UTC"})


def read(text: str) -> ET.Element:
    """HTML as well as XML: but for the doctype and one tag that is never closed."""
    assert text.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n").replace('<meta charset="utf-8">', ""))  # noqa: S314


def bars(root: ET.Element) -> list[tuple[str, dict[str, float]]]:
    """Title, and the heights by class."""
    drawn = []
    for group in root.iter("g"):
        title = group.findtext("title") or ""
        drawn.append((title, {bar.attrib["class"]: float(bar.attrib["height"]) for bar in group.iter("rect")}))
    return drawn


def test_each_moment_is_a_bar_and_what_is_missing_is_red_and_seen() -> None:
    text = page(found([(0, 1_000_000, 0), (60, 999_999, 1), (180, 250_000, 250_000), (None, 0, 7)]))
    root = read(text)
    (whole, few, half) = bars(root)
    assert "1,000,000 found, 0 missing (100 %)" in whole[0]
    assert "(99.9999 %)" in few[0]
    assert "missing" not in whole[1]
    assert few[1]["missing"] >= 2, "one of a million must be seen"
    assert half[1]["missing"] == pytest.approx(half[1]["found"])
    assert sum(half[1].values()) == pytest.approx(whole[1]["found"] / 2)
    places = [float(bar.attrib["x"]) for bar in root.iter("rect") if bar.attrib["class"] == "found"]
    assert places[2] == pytest.approx(places[1] * 3, abs=0.05), "a moment without records leaves its place free"
    assert "7 missing of which nothing tells the time" in text
    assert "2023-11-14 22:13:20" in text
    assert "Each bar 1 minute" in text


def test_conflicts_and_what_a_transaction_holds_up_are_said() -> None:
    row = {"producer_id": "p", "epoch": 1, "first": 5, "last": 6, "count": 2}
    plain = found([(0, 5, 0)])
    totals = plain["totals"] | {"conflicts": 2, "held_offsets": 9, "behind_open_transaction": 4}
    text = page(plain | {"totals": totals, "conflicts": [row]})
    assert "2 ids stand on several records that differ" in text
    assert "9 offsets are held up by an open transaction, 4 of the missing" in text
    headline = read(text).find(".//h1")
    assert headline is not None
    assert (headline.attrib["class"], headline.text) == (
        "lacking",
        "5 of 5 records found, 0 missing, 2 ids in conflict",
    )


def test_nothing_is_loaded_and_names_are_text() -> None:
    compared = {"in_topics": 10, "in_table": 8, "absent": 2, "only_in_table": 0}
    compared |= {"without_id_in_topics": 1, "without_id_in_table": 1, "without_id_absent": 0}
    absent = {"producer_id": "p", "epoch": 1, "first": 5, "last": 6, "count": 2}
    text = page(found([(0, 5, 0)], compared={"totals": compared, "absent": [absent]}))
    assert re.search(r"https?:|src=|href=|@import|url\(|<script|<link", text) is None
    root = read(text)
    assert [one.text for one in root.iter("dd")] == ["<orders>, payments", "2026-11-26 05:00:07 UTC"]
    cells = [cell.text for cell in root.iter("td")]
    assert "<b>&" in cells
    assert "1,999" in cells
    assert "?" in cells
    assert "2 of 10 absent from the table" in text
    headline = root.find(".//h1")
    assert headline is not None
    assert headline.attrib["class"] == "lacking", "nothing is missing in the topics, but in the table"


def test_an_audit_of_nothing_is_a_page_too() -> None:
    assert "No record has a timestamp." in page(found([]))
    assert bars(read(page(found([])))) == []


def test_how_often_what_is_repeated_came_stands_beside_how_many_they_are() -> None:
    again = [{"producer_id": "p", "epoch": 2, "first": 5, "last": 6, "count": 2, "repeated": 9}]
    drawn = page(found([(0, 100, 0)]) | {"repeated": again})
    row = "".join(f"<td>{cell}</td>" for cell in ("p", 2, 5, 6, 2, 9))
    assert row in drawn[drawn.index("<h2>Sequences repeated") :]


def test_a_time_that_no_calendar_has_is_a_bar_like_the_others() -> None:
    far = 1_700_000_000_000  # milliseconds, where seconds are meant
    text = page(found([(-START_S - far, 5, 0), (0, 10, 1), (far, 5, 0)]))
    titles = [title for title, _ in bars(read(text))]
    assert titles[0].startswith("-1,700,000,000,000 s since 1970 to -1,699,999,999,940 s since 1970: 5 found")
    assert titles[1].startswith("2023-11-14 22:13:20 to ")
    assert titles[2].startswith("1,701,700,000,000 s since 1970 to ")


def test_records_that_were_in_kafka_and_not_in_a_table_are_not_called_lost() -> None:
    verdicts = {"not_in_table": 3, "lost": 0, "untold": 0, "in_ring": 0, "dead_lettered": 0}
    text = page(found([(0, 5, 3)], manifests={"totals": verdicts, "ranges": [], "unreadable": 0}))
    assert "3 not in table, 0 lost" in text
    assert "these were in Kafka" in text
    headline = read(text).find(".//h1")
    assert headline is not None
    assert headline.attrib["class"] == "lacking"


def test_that_others_write_to_the_topics_is_said_where_there_are_records_without_an_id() -> None:
    assert "another program writes to these topics" in page(found([(0, 5, 0)]))


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        (
            {"open_epochs": 1, "open_oldest": "p/1", "open_told_ms": 1_795_669_207_999, "untold_epochs": 0},
            ["1 epoch is open, p/1, reported at 2026-11-26 05:00:07 UTC: what it accepted since is not known here"],
        ),
        (
            {"open_epochs": 2_000, "open_oldest": "p/1", "open_told_ms": 1_795_669_207_999, "untold_epochs": 1},
            [
                "2,000 epochs are open, the oldest, p/1, reported at 2026-11-26 05:00:07 UTC: what they accepted",
                "1 epoch was found that no manifest tells of: what it accepted behind",
            ],
        ),
        (
            {"open_epochs": 0, "open_oldest": None, "open_told_ms": None, "untold_epochs": 3},
            ["3 epochs were found that no manifest tells of: what they accepted behind"],
        ),
    ],
)
def test_epochs_that_no_manifest_closes_are_said_to_be_unknown(unknown: dict[str, Any], said: list[str]) -> None:
    told = found([(0, 5, 0)])
    text = page(told | {"totals": told["totals"] | unknown})
    assert [line for line in said if line not in text] == []
    assert text.count("not known here") == len(said)
    assert "not known here" not in page(told)


def test_fewer_records_without_an_id_in_the_table_than_in_the_topics_are_told_and_no_failure() -> None:
    counts = {"in_topics": 10, "in_table": 10, "absent": 0, "only_in_table": 0}

    def drawn(fewer: int) -> str:
        strangers = {"without_id_in_topics": 4, "without_id_in_table": 4 - fewer, "without_id_absent": fewer}
        return page(found([(0, 5, 0)], compared={"totals": counts | strangers, "absent": []}))

    text = drawn(3)
    assert "Without an id: the table has 3 fewer than the topics; they may" in text
    headline = read(text).find(".//h1")
    assert headline is not None
    assert headline.attrib["class"] == "whole"
    assert "fewer than the topics" not in drawn(0)


def test_the_sequences_of_each_epoch_stand_beside_its_counts() -> None:
    assert "<td>3-2,000</td>" in page(found([(0, 5, 0)]))
    assert "<td>none found</td>" in page(found([(None, 0, 7)]))
