import pytest

from tests.power.records import name_of, value_of
from tests.power.words import Said, hear, line


def test_what_is_said_is_heard() -> None:
    lines = [line("O", 3, 1), line("A", 4, 1, 2, 3), line("D", 5, 1, 2)]
    assert hear([text.decode() for text in lines]) == [
        Said("O", 3, (1,)),
        Said("A", 4, (1, 2, 3)),
        Said("D", 5, (1, 2)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "A 4 1 2 3",
        "A 4 1 2 33 ",
        "A 4 1 2 .",
        "A 4 1 2 3 33",
        "A 4 1 2 3[  9.1] sysrq: Resetting",
        "A 4 1 -2 3 .",
        "recovered",
    ],
)
def test_a_line_that_is_torn_or_mixed_says_nothing(text: str) -> None:
    assert hear([text]) == []


def test_a_line_is_whole_with_its_end_only() -> None:
    whole = line("A", 10, 11, 12, 13).decode().rstrip("\n")
    assert [cut for cut in range(len(whole) + 1) if hear([whole[:cut]])] == [len(whole)]


def test_records_tell_who_published_them() -> None:
    names = [(life, number) for life in (1, 12) for number in range(200)]
    assert [name_of(value_of(*name)) for name in names] == names


def test_any_byte_that_changed_is_seen() -> None:
    value = value_of(1, 2)
    for at in range(len(value)):
        changed = bytearray(value)
        changed[at] ^= 1
        assert name_of(bytes(changed)) is None


@pytest.mark.parametrize("value", [None, b"", b"1.2", b"x.y:", value_of(1, 2) + b"x", value_of(1, 2)[:-1]], ids=str)
def test_what_nobody_published_has_no_name(value: bytes | None) -> None:
    assert name_of(value) is None
