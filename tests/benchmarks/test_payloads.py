from itertools import cycle, islice

import pytest

from benchmarks.ring.payloads import CHUNK, DIFFERENT, check, chunks, payloads

SIZE = 16


def stored(count: int) -> list[bytes]:
    return list(islice(cycle(payloads(SIZE)), count))


def test_payloads_are_different_and_the_same_in_every_process() -> None:
    assert len(set(payloads(SIZE))) == DIFFERENT
    assert payloads(SIZE) == payloads(SIZE)
    assert {len(payload) for payload in payloads(SIZE)} == {SIZE}


def test_chunks_go_round_in_the_order_that_is_looked_for() -> None:
    taken = [payload for chunk in islice(chunks(SIZE), DIFFERENT // CHUNK + 1) for payload in chunk]
    check(taken, SIZE, DIFFERENT + CHUNK)


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("settled", [0, 1, 1500])
def test_what_was_stored_and_is_not_settled_is_found(settled: int, ordered: bool) -> None:
    check(stored(2500)[settled:], SIZE, 2500, settled, ordered=ordered)


def test_publishers_that_overtake_each_other_are_in_no_order() -> None:
    check(reversed(stored(2500)), SIZE, 2500, ordered=False)
    with pytest.raises(AssertionError, match="another record"):
        check(reversed(stored(2500)), SIZE, 2500)


WRONG = {
    "nothing": ([], "are missing"),
    "one missing at the end": (stored(2499), "are missing"),
    "one too many": (stored(2501), "more records"),
    "a strange one": ([*stored(2499), b"\0" * SIZE], "another record"),
    "one twice": ([*stored(2498), *stored(1), stored(2500)[-1]], "another record"),
    "one missing at the start": (stored(2500)[1:], "another record"),
}


@pytest.mark.parametrize(("found", "message"), WRONG.values(), ids=WRONG)
def test_anything_else_ends_the_benchmark(found: list[bytes], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(found, SIZE, 2500)


@pytest.mark.parametrize("found", [found for found, _ in WRONG.values()], ids=WRONG)
def test_anything_else_ends_the_benchmark_where_there_is_no_order(found: list[bytes]) -> None:
    with pytest.raises(AssertionError, match="other records"):
        check(found, SIZE, 2500, ordered=False)


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_a_store_that_stores_nothing_ends_the_benchmark(ordered: bool) -> None:
    with pytest.raises(AssertionError, match="nothing was stored"):
        check([], SIZE, 0, ordered=ordered)
