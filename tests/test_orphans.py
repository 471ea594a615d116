"""Which directory is adopted, and when: by looks and moments that are given."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from aiorecover.orphans import LONGEST, LOOK_LEAST, LOOK_MOST, PAUSE_FIRST, PAUSE_MAX, REMEMBERED, RETAKE, Orphans
from aiorecover.wal.checkpoint import Destination
from aiorecover.wal.neighbours import Neighbour

GRACE = 60.0
HERE = Destination(cluster_id="here", name="orders")
OWN = Neighbour("0", destination=HERE, directory_id=100)
ORPHAN = Neighbour("1", b"stamp", free=True, waiting=True, destination=HERE, directory_id=101)
LOCKED = Neighbour("1", b"stamp")
DELIVERED = Neighbour("1", b"stamp", free=True, waiting=False)


def seen(*looks: tuple[float, Neighbour], grace: float = GRACE) -> Orphans:
    orphans = Orphans(grace)
    for now, one in looks:
        orphans.saw(now, [one], OWN)
    return orphans


def moment(orphans: Orphans, after: float, until: float = 10_000) -> float | None:
    """When a directory is due; to a tenth of a second."""
    tenths: Iterable[float] = (tenth / 10 for tenth in range(int(after * 10), int(until * 10)))
    return next((now for now in tenths if orphans.due(now) is not None), None)


def test_a_free_directory_is_adopted_after_the_grace_period_and_not_before() -> None:
    orphans = seen((100, ORPHAN), (130, ORPHAN), (159, ORPHAN))
    assert orphans.due(159.9) is None
    assert orphans.due(160) == "1"


@pytest.mark.parametrize("grace", [0.0, 0.3, RETAKE])
def test_also_without_a_grace_period_who_waits_for_it_has_the_time_to_take_it(grace: float) -> None:
    orphans = seen((100, ORPHAN), grace=grace)
    assert moment(orphans, 100) == pytest.approx(100 + RETAKE)
    orphans.lost("1")  # a turn of somebody else
    orphans.saw(110, [replace(ORPHAN, stamp=b"by another", progress=(1,))], OWN)
    assert moment(orphans, 110) == pytest.approx(110 + RETAKE)


@pytest.mark.parametrize("look", [LOCKED, DELIVERED, replace(LOCKED, error="cannot be read")])
def test_what_is_locked_delivered_or_unreadable_is_never_adopted(look: Neighbour) -> None:
    assert moment(seen((0, look), (1000, look)), 0) is None


def test_an_owner_that_comes_back_within_the_grace_begins_it_anew() -> None:
    orphans = seen((100, ORPHAN), (130, LOCKED), (140, ORPHAN))
    assert moment(orphans, 100) == 140 + GRACE


def test_an_owner_that_came_and_went_between_two_looks_begins_it_anew() -> None:
    orphans = seen((100, ORPHAN), (150, replace(ORPHAN, stamp=b"opened")))
    assert moment(orphans, 100) == 150 + GRACE


def test_a_directory_that_is_gone_is_forgotten() -> None:
    orphans = seen((100, ORPHAN))
    orphans.saw(130, [], OWN)
    orphans.saw(140, [ORPHAN], OWN)
    assert moment(orphans, 100) == 140 + GRACE


def test_who_loses_the_lock_passes_on_to_the_next_one_and_waits_for_the_grace_anew() -> None:
    orphans = Orphans(GRACE)
    both = [ORPHAN, replace(ORPHAN, name="2", directory_id=102)]
    orphans.saw(100, both, OWN)
    assert orphans.due(160) == "1"
    orphans.lost("1")
    assert orphans.due(160) == "2"
    orphans.lost("2")
    assert orphans.due(1000) is None
    orphans.saw(170, both, OWN)
    assert moment(orphans, 160) == 170 + GRACE


def test_after_a_turn_with_progress_it_is_due_again_as_soon_as_its_owner_could_have_come() -> None:
    orphans = seen((100, ORPHAN))
    orphans.let_go("1", 170, settled=5, left=3)
    assert orphans.left == 3
    assert moment(orphans, 170) == 170 + RETAKE
    orphans.saw(170.2, [replace(ORPHAN, stamp=b"by our turn")], OWN)
    assert moment(orphans, 170) == 170 + RETAKE
    orphans.saw(170.3, [replace(ORPHAN, stamp=b"by somebody else")], OWN)
    assert moment(orphans, 170) == pytest.approx(170.3 + GRACE)


def test_an_owner_that_takes_it_between_two_turns_keeps_it() -> None:
    orphans = seen((100, ORPHAN))
    orphans.let_go("1", 170, settled=5, left=3)
    orphans.saw(170.4, [LOCKED], OWN)
    assert moment(orphans, 170) is None
    assert orphans.left == 0


def test_what_was_delivered_to_the_end_is_not_taken_again() -> None:
    orphans = seen((100, ORPHAN))
    orphans.let_go("1", 170, settled=5, left=0)
    orphans.saw(170.2, [replace(DELIVERED, stamp=b"by our turn")], OWN)
    assert moment(orphans, 170) is None


def test_turns_without_progress_are_ever_further_apart_up_to_a_limit() -> None:
    orphans = seen((100, ORPHAN))
    now, pauses = 160.0, []
    for _ in range(9):
        orphans.let_go("1", now, settled=0, left=3)
        orphans.saw(now + 1, [ORPHAN], OWN)
        again = moment(orphans, now)
        assert again is not None
        pauses.append(again - now)
        now = again
    assert pauses == [min(PAUSE_FIRST * 2**number, PAUSE_MAX) for number in range(9)]
    orphans.let_go("1", now, settled=1, left=2)
    assert moment(orphans, now) == now + RETAKE


def test_a_turn_that_has_to_be_begun_anew_is_followed_by_one_of_twice_the_time_up_to_a_limit() -> None:
    orphans = seen((100, ORPHAN))
    turns = [orphans.turns("1")]
    for _ in range(7):
        orphans.let_go("1", 170, settled=1, left=3, judged=False)
        turns.append(orphans.turns("1"))
    assert turns == [1, 2, 4, 8, 16, 32, LONGEST, LONGEST]
    orphans.let_go("1", 170, settled=1, left=3)
    assert orphans.turns("1") == 1


def test_a_turn_too_short_to_judge_all_says_nothing_of_kafka_and_the_longest_one_does() -> None:
    orphans = seen((100, ORPHAN))
    now, pauses = 160.0, []
    while orphans.turns("1") < LONGEST:
        orphans.let_go("1", now, settled=0, left=3, judged=False)
        again = moment(orphans, now)
        assert again is not None
        pauses.append(again - now)
        now = again
    assert pauses == [RETAKE] * 5
    orphans.let_go("1", now, settled=0, left=3, judged=False)
    assert moment(orphans, now) == now + PAUSE_FIRST


@pytest.mark.parametrize("settled", [0, 5])
def test_who_was_cut_off_as_it_read_has_twice_the_time_at_once_until_one_comes_through(settled: int) -> None:
    orphans = seen((100, ORPHAN))
    now = 160.0
    for turns in (2, 4, 8):
        orphans.let_go("1", now, settled=settled, left=3, cut_off=True)
        assert orphans.turns("1") == turns
        assert moment(orphans, now) == now + RETAKE
        now += RETAKE
    orphans.let_go("1", now, settled=0, left=3)
    assert orphans.turns("1") == 1
    assert moment(orphans, now) == now + PAUSE_FIRST


def test_where_even_the_longest_turn_is_cut_off_with_nothing_delivered_turns_are_further_apart() -> None:
    orphans = seen((100, ORPHAN))
    for _ in range(5):
        orphans.let_go("1", 160, settled=0, left=3, cut_off=True)
    assert orphans.turns("1") == LONGEST
    assert moment(orphans, 160) == 160 + RETAKE
    for pause in (PAUSE_FIRST, 2 * PAUSE_FIRST):
        orphans.let_go("1", 160, settled=0, left=3, cut_off=True)
        assert orphans.turns("1") == LONGEST
        assert moment(orphans, 160) == 160 + pause


def test_turns_that_were_cut_off_do_not_begin_the_pauses_anew() -> None:
    """Each time the pause is over the first turns come to nothing, and the one that comes through delivers nothing."""
    orphans = seen((100, ORPHAN))
    for pause in (PAUSE_FIRST, 2 * PAUSE_FIRST, 4 * PAUSE_FIRST):
        orphans.let_go("1", 160, settled=0, left=3, cut_off=True)
        orphans.let_go("1", 160, settled=0, left=3)
        assert moment(orphans, 160) == 160 + pause


def test_what_waits_after_all_was_delivered_begins_with_a_short_turn() -> None:
    orphans = seen((100, ORPHAN))
    orphans.let_go("1", 160, settled=0, left=3, cut_off=True)
    orphans.saw(170, [DELIVERED], OWN)  # by its owner
    orphans.saw(180, [replace(ORPHAN, stamp=b"by its owner")], OWN)
    assert orphans.turns("1") == 1


def test_whose_owner_came_further_since_begins_with_a_short_turn() -> None:
    """He may have worked for days, and died with other things waiting; and another one may wait for it by name."""
    orphans = seen((100, ORPHAN))
    orphans.let_go("1", 160, settled=0, left=3, cut_off=True)
    orphans.saw(170, [replace(ORPHAN, stamp=b"by our turn")], OWN)
    assert orphans.turns("1") == 2
    orphans.saw(180, [LOCKED], OWN)
    orphans.saw(160 + REMEMBERED, [replace(ORPHAN, stamp=b"by its owner", progress=(1,))], OWN)
    assert orphans.turns("1") == 2, "or by another worker's turn, which came a little further"
    orphans.saw(800, [replace(ORPHAN, stamp=b"by one who came no further", progress=(1,))], OWN)
    assert orphans.turns("1") == 2
    orphans.saw(900, [replace(ORPHAN, stamp=b"by its owner", progress=(2,))], OWN)
    assert orphans.turns("1") == 1


def test_who_takes_turns_with_another_one_comes_to_long_turns_all_the_same() -> None:
    """Each comes a little further, and is cut off."""
    orphans = seen((100, ORPHAN))
    now = 160.0
    for turns in (2, 4, 8, 16, 32):
        orphans.let_go("1", now, settled=1, left=3, cut_off=True)
        orphans.saw(now, [replace(ORPHAN, stamp=b"ours %d" % turns, progress=(turns, 0))], OWN)
        now += 10.0 * turns
        orphans.saw(now, [replace(ORPHAN, stamp=b"another's %d" % turns, progress=(turns, 1))], OWN)
        assert orphans.turns("1") == turns


def test_where_turns_are_short_more_of_them_are_in_the_longest_one() -> None:
    orphans = Orphans(GRACE, 100)
    orphans.saw(100, [ORPHAN], OWN)
    turns = []
    for _ in range(8):
        orphans.let_go("1", 160, settled=0, left=3, cut_off=True)
        turns.append(orphans.turns("1"))
    assert turns == [2, 4, 8, 16, 32, 64, 100, 100]


def test_several_orphans_take_turns() -> None:
    orphans = Orphans(GRACE)
    both = [ORPHAN, replace(ORPHAN, name="2", directory_id=102)]
    orphans.saw(100, both, OWN)
    now, turns = 160.0, []
    for _ in range(6):
        name = orphans.due(now)
        assert name is not None
        turns.append(name)
        now += 10
        orphans.let_go(name, now, settled=1, left=1)
        orphans.saw(now, both, OWN)
    assert turns == ["1", "2"] * 3


def test_a_failure_is_told_once_and_does_not_stop_the_others() -> None:
    orphans = Orphans(GRACE)
    both = [ORPHAN, replace(ORPHAN, name="2", directory_id=102)]
    orphans.saw(100, both, OWN)
    assert orphans.failed("1", 160, "no room")
    assert orphans.due(160) == "2"
    orphans.let_go("2", 165, settled=1, left=0)
    orphans.saw(166, [ORPHAN, replace(DELIVERED, name="2", directory_id=102)], OWN)
    assert moment(orphans, 166) == 160 + PAUSE_FIRST
    assert not orphans.failed("1", 170, "no room")
    assert moment(orphans, 170) == 170 + 2 * PAUSE_FIRST
    assert orphans.failed("1", 190, "a newer version")


def test_what_cannot_be_looked_at_is_told_once_until_the_reason_changes() -> None:
    orphans = Orphans(GRACE)
    junk = replace(LOCKED, error="junk")
    told = [orphans.saw(now, [look], OWN) for now, look in ((1, junk), (2, junk), (3, replace(junk, error="worse")))]
    assert told == [[("1", "junk")], [], [("1", "worse")]]


KNOWN, NAMED = Destination(cluster_id="here"), Destination(cluster_id="here", name="orders")
ELSEWHERE = Destination(cluster_id="elsewhere", name="orders")
ADDRESS = Destination(servers=("a:1", "b:1"))


@pytest.mark.parametrize(
    ("its", "own", "adopted"),
    [
        (KNOWN, KNOWN, True),
        (NAMED, NAMED, True),
        (ELSEWHERE, NAMED, False),
        (NAMED, KNOWN, False),
        (KNOWN, NAMED, False),
        (Destination(cluster_id="here", name="bills"), NAMED, False),
        # it never reached a cluster: a name, or an address that we use, too, says where it belongs
        (Destination(), KNOWN, False),
        (Destination(name="orders"), NAMED, True),
        (Destination(), NAMED, False),
        (ADDRESS, Destination(cluster_id="here", servers=("b:1", "c:1")), True),
        (ADDRESS, Destination(cluster_id="here", servers=("c:1",)), False),
        # our kafka tells no id
        (ADDRESS, Destination(servers=("a:1",)), True),
        (KNOWN, Destination(servers=("a:1",)), False),
    ],
)
def test_only_what_belongs_to_our_destination_is_adopted(its: Destination, own: Destination, adopted: bool) -> None:
    orphans = Orphans(GRACE)
    told = orphans.saw(100, [replace(ORPHAN, destination=its)], replace(OWN, destination=own))
    assert (orphans.due(200) == "1") is adopted
    assert bool(told) is not adopted


@pytest.mark.parametrize(
    ("server", "boot_id", "adopted"),
    [
        ("localhost:9092", "here", True),
        ("localhost:9092", "there", False),
        ("localhost:9092", "", False),
        ("LOCALHOST:9092", "there", False),
        ("127.0.0.2:9092", "there", False),
        ("[::1]:9092", "there", False),
        ("0.0.0.0:9092", "there", False),
        ("kafka.localhost:9092", "there", False),
        ("10.0.0.1:9092", "there", True),
        ("kafka:9092", "", True),
    ],
)
def test_an_address_that_leads_each_machine_to_itself_says_nothing_on_another_one(
    server: str, boot_id: str, adopted: bool
) -> None:
    orphans, there = Orphans(GRACE), Destination(servers=(server,))
    own = replace(OWN, destination=replace_servers(KNOWN, "elsewhere:1", server), boot_id="here")
    told = orphans.saw(100, [replace(ORPHAN, destination=there, boot_id=boot_id)], own)
    assert (orphans.due(200) == "1") is adopted
    assert bool(told) is not adopted


def replace_servers(destination: Destination, *servers: str) -> Destination:
    return Destination(destination.cluster_id, destination.name, servers)


def test_before_kafka_was_reached_a_directory_of_a_cluster_is_neither_told_of_nor_adopted() -> None:
    orphans, own = Orphans(GRACE), replace(OWN, destination=Destination())
    mine = replace(ORPHAN, destination=KNOWN)
    alien = replace(ORPHAN, name="2", directory_id=102, destination=Destination("elsewhere"))
    assert orphans.saw(100, [mine, alien], own, reached=False) == []
    assert orphans.due(1_000) is None
    told = orphans.saw(150, [mine, alien], replace(own, destination=KNOWN))
    assert [name for name, _ in told] == ["2"]
    assert orphans.due(160) == "1", "it was free all the time"


@pytest.mark.parametrize("copied", [101, 100], ids=["of the one beside it", "of our own"])
@pytest.mark.parametrize("other", [LOCKED, DELIVERED], ids=["locked", "delivered"])
def test_a_copy_is_never_adopted_and_told_once(copied: int, other: Neighbour) -> None:
    orphans = Orphans(GRACE)
    looks = [replace(ORPHAN, directory_id=copied), replace(other, name="2", directory_id=101)]
    told = [orphans.saw(now, looks, OWN) for now in (100, 105)]
    assert orphans.due(1000) is None
    assert "move the copy out of wal_dir" in told[0][0][1]
    assert told[1] == []


def test_what_is_left_counts_once_while_it_has_a_turn() -> None:
    orphans = seen((100, ORPHAN))
    orphans.begin("1")
    orphans.let_go("1", 110, settled=5, left=1000)
    orphans.saw(111, [ORPHAN], OWN)
    assert orphans.left == 1000
    orphans.begin("1")
    assert orphans.left == 0


def test_the_first_turn_is_the_beginning_of_an_adoption() -> None:
    orphans = seen((100, ORPHAN))
    assert orphans.begin("1")
    orphans.let_go("1", 170, settled=1, left=1)
    orphans.saw(171, [ORPHAN], OWN)
    assert not orphans.begin("1")
    orphans.saw(172, [LOCKED], OWN)
    orphans.saw(173, [ORPHAN], OWN)
    assert orphans.begin("1")


@pytest.mark.parametrize(("grace", "pause"), [(0.0, RETAKE / 4), (1.0, 0.25), (60.0, LOOK_MOST)])
def test_looks_are_a_part_of_the_grace_apart(grace: float, pause: float) -> None:
    assert Orphans(grace).next_look(0) == pause


def test_the_next_look_is_no_later_than_the_next_moment() -> None:
    orphans = seen((100, ORPHAN))
    assert orphans.next_look(158) == 2
    assert orphans.next_look(170) == LOOK_LEAST


def test_while_nothing_can_be_adopted_looks_are_no_more_frequent_than_ever() -> None:
    assert seen((100, ORPHAN)).next_look(170, ready=False) == LOOK_MOST


@pytest.mark.parametrize("workers", [1, 2, 20])
def test_what_cannot_be_delivered_is_tried_as_seldom_by_many_workers_as_by_one(workers: int) -> None:
    look, now, turns = replace(ORPHAN, progress=(7, 8)), 0.0, 0
    fleet = [Orphans(GRACE) for _ in range(workers)]
    while now < 86_400:
        for one in fleet:
            one.saw(now, [look], OWN)
            if one.due(now) is not None:
                one.begin("1")
                turns += 1
                now += 10
                look = replace(look, stamp=b"turn %d" % turns)
                one.let_go("1", now, settled=0, left=3)
        now += LOOK_MOST
    assert turns <= 86_400 / PAUSE_MAX + 10


def test_a_turn_of_somebody_else_with_progress_begins_the_pauses_anew() -> None:
    orphans = seen((100, ORPHAN))
    for now in (160, 200, 300):
        orphans.let_go("1", now, settled=0, left=3)
        orphans.saw(now + 1, [ORPHAN], OWN)
    orphans.saw(310, [replace(ORPHAN, stamp=b"by another", progress=(1,))], OWN)
    assert moment(orphans, 310) == pytest.approx(310 + GRACE)
