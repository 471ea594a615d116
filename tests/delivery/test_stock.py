"""What earlier epochs left in the dead ring: known once all of it was read, whoever reads which part."""

from aiorecover.delivery.stock import Stock
from aiorecover.wal import format as fmt
from aiorecover.wal.moved import NO_PARTITION, pack_moved
from tests.wal.rig import SLOT, Opened

LETTER = b"why, and the record" * 20


def left(*numbers: int) -> Opened:
    """As the next process finds letters of these records."""
    opened = Opened()
    for number in numbers:
        opened.directory.dead.append(pack_moved(fmt.position(1, number), 0, NO_PARTITION, LETTER), None)
    return opened.dies()


def take(stock: Stock, limit: int = 100) -> list[int | None]:
    """To the end; where each step went on."""
    places = []
    while True:
        places.append(stock.place)
        run = stock.reader.look(limit)
        if run is not None:
            stock.add(run)
        elif not stock.reader.moved:
            break
    stock.finish()
    return places


def test_no_letter_is_known_before_all_are_read_and_then_each_is() -> None:
    numbers = [9, 3, 40, 7]
    with left(*numbers) as opened:
        stock = Stock(opened.directory.dead)
        run = stock.reader.look(2)
        assert run is not None
        stock.add(run)
        assert fmt.position(1, 9) not in stock
        assert (stock.taken, stock.may_hold_some) == (False, True)
        take(stock)
        assert (stock.taken, stock.may_hold_some) == (True, True)
        assert [number for number in range(50) if fmt.position(1, number) in stock] == sorted(numbers)


def test_of_two_letters_that_are_taken_out_none_is_known_any_more() -> None:
    with left(9, 3, 40) as opened:
        stock = Stock(opened.directory.dead)
        take(stock)
        for number in (3, 40, 7):  # of the last one there never was one
            stock.remove(fmt.position(1, number))
        assert [number for number in range(50) if fmt.position(1, number) in stock] == [9]
        assert stock.may_hold_some
        stock.remove(fmt.position(1, 9))
        assert not stock.may_hold_some


def test_a_dead_ring_in_which_nothing_was_left_holds_nothing() -> None:
    with Opened() as opened:
        stock = Stock(opened.directory.dead)
        assert not stock.may_hold_some
        assert take(stock) == [None]
        assert stock.taken
        assert not stock.may_hold_some
        assert fmt.position(1, 1) not in stock


def test_where_all_that_was_left_is_purged_nothing_is_held_any_more() -> None:
    opened = Opened()
    place, sequence = opened.directory.dead.append(pack_moved(fmt.position(1, 5), 0, NO_PARTITION, LETTER), None)
    opened.directory.dead.settle(opened.directory.dead.slot_of(sequence), [place])
    with opened.dies() as following:
        stock = Stock(following.directory.dead)
        assert stock.may_hold_some
        take(stock)
        assert not stock.may_hold_some


def test_two_letters_of_one_record_are_found() -> None:
    with left(9, 3, 9, 7, 3, 1) as opened:
        stock = Stock(opened.directory.dead)
        take(stock)
        assert stock.twice() == {fmt.position(1, 3), fmt.position(1, 9)}


def test_it_is_told_where_in_the_file_the_next_step_reads() -> None:
    with left(*range(1, 91)) as opened:
        dead = opened.directory.dead
        slots = list(dead.live)
        assert len(slots) > 2
        places = take(Stock(dead), limit=10)
        assert places[0] == slots[0].file_offset + fmt.FIRST_FRAME
        known = [place for place in places if place is not None]
        assert known == sorted(known)
        assert {place // SLOT for place in known} == {slot.index for slot in slots}
        assert {slot.file_offset + fmt.FIRST_FRAME for slot in slots} <= {*known}


def test_what_this_process_has_left_is_not_among_what_was_there() -> None:
    with left(9) as opened:
        dead = opened.directory.dead
        dead.append(pack_moved(fmt.position(dead.epoch, 5), 0, NO_PARTITION, LETTER), None)
        stock = Stock(dead)
        take(stock)
        assert fmt.position(1, 9) in stock
        assert fmt.position(dead.epoch, 5) not in stock
