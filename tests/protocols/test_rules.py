"""Each rule of the log on disk, and the faults by which it is taken away: what a proof has to notice.

The rules stand in `aiorecover.wal`. The faults stand, each with what notices it, in

tests.wal.test_planted_slots      slots, frames, opening
tests.wal.test_planted_files      mapping, growing, room
tests.wal.test_planted_owners     who may have a directory
tests.wal.test_planted_faults     invariants, names, the slot size, both copies of the checkpoint lost
tests.wal.test_model_faults       whatever the model finds without being told where to look
tests.protocols.faults            whatever a crash between two steps tells of
tests.protocols.failed_flush_faults, .test_group_commit, .test_rot, .test_sealing
tests.crash.planted               what it takes a broker to see

and some in tests of their own (`ALONE`). What is done so and might as well be done otherwise is no rule
(`tests.protocols.faults.FREE`): nothing goes red without it.
"""

from collections.abc import Callable

from tests.crash import planted as crash_faults
from tests.faults import test_strangers
from tests.protocols import failed_flush_faults, faults, test_group_commit
from tests.wal import (
    test_enumeration,
    test_model_faults,
    test_planted_faults,
    test_planted_files,
    test_planted_owners,
    test_planted_slots,
    test_signals,
)

RULES: dict[str, dict[str, str]] = {  # names of faults, with spaces between
    "directories": {
        "a process takes the first one whose lock is free": (
            "take_what_is_locked adopt_what_is_locked open_what_another_has_locked call_every_directory_free"
        ),
        "one that is asked for by name is waited for": "wait_for_no_name",
        "one with undelivered records is adopted, and no other": (
            "adopt_only_what_the_last_checkpoint_left adopt_whatever_has_a_slot_in_use"
        ),
        "after a grace period": "adopt_at_once",
        "let go once it is drained": "let_a_directory_go_and_keep_its_lock",
        "and its records keep their ids": "call_what_is_adopted_ones_own call_what_is_moved_ones_own",
        "it remembers its destination": "forget_whose_it_is send_to_any_cluster",
        "inodes are compared with the path after locking": "trust_the_name_of_the_lock",
        "and on each tick": "look_at_no_inode look_once",
        "links and foreign owners are refused": "follow_links take_any_owner",
        "nobody else may read": "let_others_read",
        "a forked child closes everything": "keep_files_open_in_a_child",
        "and never unlocks": "unlock_when_a_file_is_closed",
        "and accepts nothing": "keep_the_rings_open_in_a_child",
        "new files, their directory, wal_dir and its parents are flushed before the first record is accepted": (
            "flush_no_name flush_all_names_but_those_in_ flush_all_names_but_those_in_srv "
            "flush_all_names_but_those_in_srv_shop flush_all_names_but_those_in_srv_shop_wal "
            "flush_all_names_but_those_in_srv_shop_wal_0"
        ),
    },
    "slots": {
        "a header stands twice": "header_in_front_only",
        "a newer version is refused": "read_a_newer_version",
        "no ordinal is used twice": "ordinal_forgotten shrink_without_knowing_the_next_ordinal",
        "what is neither zero nor valid is reported": "report_no_damaged_slot",
        "and never recycled": "recycle_what_is_damaged",
        "a slot is sealed when it is left": "no_seal",
        "before the next header is written": "sealed_behind_the_next_header",
        "its first reader seals what a crash left open": "not_sealed_by_its_reader",
        "a slot belongs to one epoch": "go_on_in_the_slot_of_the_epoch_before",
        "an opening takes no slot": "take_a_slot_at_the_opening",
        "the stored slot size wins over the option": "take_the_slot_size_of_the_option",
        "the retry and the dead ring keep a slot each": "reserve_nothing keep_no_slot_for_letters",
    },
    "frames": {
        "a frame counts only if its checksum holds": "trust_every_checksum",
        "and its sequence is the one expected there": "trust_every_sequence",
        "the salt of the slot's present life seeds the checksum": "forget_the_salt one_salt_for_all_lives",
        "and is the settle word's value": "settle_word_without_life",
        "one flipped bit cannot settle": "let_one_bit_settle",
        "tail and sequence are advanced before the first byte is stored": (
            "test_what_is_advanced_behind_the_store_lets_a_handler_overwrite_or_repeat"
        ),
        "an exception in between leaves a skip frame": "leave_a_hole_where_storing_failed",
        "zero is never a frame": "take_zeros_for_a_frame",
        "a copy has its ring's own number": "number_a_copy_as_its_original",
        "a copy has the original position and partition in its payload": (
            "forget_where_a_copy_comes_from forget_the_partition_of_a_copy"
        ),
    },
    "files": {
        "backlog is read and not mapped": "read_through_a_mapping",
        "nothing is mapped beyond the size that fstat gives": "map_without_a_look_at_the_size",
        "file sizes are changed by one at a time": "change_sizes_without_the_lock",
        "only slots that no mapping knows are cut off": "cut_off_whatever_stands_there",
        "and no durable checkpoint": "cut_off_before_durable",
        "growth is by real allocation": "grow_by_holes",
        "up to the limit of the rings": "grow_beyond_the_limit",
        "and down to the guard of the disk": "take_what_is_left_for_others",
    },
    "settling": {
        "after the acknowledgement": "settle_at_hand_over",
        "in place, so that nothing is sent again": "forget_to_settle",
        "or once the letter is durable": (
            "call_letters_durable_before_they_are settled_without_its_letter free_letters_that_wait "
            "make_checkpoints_without_flushing_the_dead_ring"
        ),
        "what was in flight is settled as a whole": (
            "give_what_is_claimed_to_readers claim_without_having_the_settled_ones_wait_again "
            "count_nothing_of_what_is_claimed give_copies_of_what_is_claimed_to_readers "
            "move_what_is_in_flight_and_leave_its_entry"
        ),
        "entries count if they are whole, and of this boot and file": (
            "believe_entries_whose_checksum_does_not_hold store_an_entry_over_the_newest_one "
            "know_what_another_boot_has_stored"
        ),
    },
    "checkpoint": {
        "it says what was captured before its flush": (
            "capture_after_the_flush captured_after_its_flush watermark_too_high"
        ),
        "the rings are flushed, and the lanes": (
            "write_without_flushing ring_not_flushed make_checkpoints_without_flushing_the_lanes"
        ),
        "it is flushed itself": "checkpoint_not_flushed",
        "its two copies alternate": (
            "always_write_the_same_copy overwrite_both_copies both_copies_in_one_place both_copies_at_once "
            "next_copy_over_the_good_one found_copy_not_durable found_copy_only_flushed"
        ),
        "it takes nothing back": "rewriting_taken_back take_back_what_was_made "
        "take_back_what_was_remembered_of_the_position begin_a_life_without_the_openings_before",
        "a clean end is one, and no other": (
            "call_every_checkpoint_the_last doubt_a_clean_end closed_though_stores_follow closed_without_a_flush "
            "closed_until_the_next_checkpoint closed_for_ever copies_counted_at_a_clean_end every_end_taken_for_clean"
        ),
        "both copies invalid: rebuilt from the headers, never taken for new": (
            "take_it_for_new new_without_a_checkpoint forget_what_was_moved forget_what_was_recycled "
            "take_the_newest_slot_for_the_oldest open_where_nothing_tells_what_was"
        ),
        "the new epoch is one above the highest found": "open_without_a_new_epoch epoch_not_raised",
        "in the copies": "take_the_epoch_of_the_headers_alone",
        "and in all headers": "take_the_epoch_of_the_copies_alone",
        "it is durable before the first frame": "open_without_writing_the_epoch epoch_not_durable",
        "in both copies": "epoch_in_one_copy",
    },
    "recycling": {
        "only what is settled": "recycle_what_waits recycled_while_it_waits",
        "and a durable checkpoint covers": ("recycle_without_a_durable_watermark recycled_before_durable"),
        "and nobody stands in": "recycle_under_a_reader recycled_under_a_reader",
    },
    "compaction": {
        "copies are flushed before the checkpoint makes the move": (
            "copies_not_flushed moved_before_the_copies make_a_move_without_flushing_its_copies "
            "move_without_its_copies moved_in_one_copy"
        ),
        "main frames up to P are void": "originals_count_after_the_move let_originals_count_beside_their_copies",
        "copies beyond it are void": (
            "copies_counted_while_moving forget_where_copies_begin_that_do_not_count "
            "a_copy_too_many_counts a_copy_too_few_counts"
        ),
        "an opening marks them": (
            "void_copies_not_marked leave_copies_that_do_not_count void_is_only_settled discarded_header_left"
        ),
        "so does a move that fails": (
            "failed_move_not_settled failed_move_not_void abandon_a_move_and_keep_its_copies "
            "settle_copies_again_when_a_move_is_abandoned"
        ),
        "what is settled meanwhile is settled in both places": (
            "copies_not_settled_with_originals settle_the_original_alone copy_what_was_settled_meanwhile"
        ),
        "the retry ring is rewritten in the same way": (
            "rewritten_not_flushed rewritten_before_the_flush rewritten_in_one_copy rewriting_without_its_copies "
            "rewritten_counts_beside_its_original rewritten_counts_at_once unmade_rewriting_not_marked "
            "failed_rewriting_not_void rewriting_not_settled_with_originals abandon_a_rewriting_and_keep_its_copies "
            "forget_that_the_retry_ring_was_rewritten"
        ),
        "per lane, retry comes before main": (
            "read_the_main_ring_first deliver_from_the_main_ring_before_the_copies_are_read"
        ),
    },
    "opening": {
        "the backlog is not read": "read_everything_at_the_opening",
        "lane suffix rule: all behind the first one that waits": "no_suffix_rule believe_every_settle_word",
        "after a changed boot id or a failed flush": "suspect_nothing no_word_left",
        "and only then": "doubt_what_a_killed_process_has_settled",
        "until all of that time is judged": (
            "suspicion_forgotten no_generation unfinished_generations_trusted mark_nothing_as_done_again "
            "forget_which_generations_are_not_dealt_with move_a_slot_before_all_suspects_are_read"
        ),
        "records of no lane count by their own word": "nobodys_records_in_one_lane",
        "damage: the next frame is found and the rest delivered": "test_a_reader_that_reports_or_finds_less_is_noticed",
        "exactly what is missing is reported": "test_a_reader_that_reports_or_finds_less_is_noticed",
        "the bytes are kept": "keep_no_bytes recycle_before_the_bytes_are_kept",
    },
    "durability": {
        "released only by a flush that began after the store": "shared_with_one_that_was_already_running",
        "poison is checked before release": (
            "failed_for_nobody failed_for_who_came_meanwhile tried_again told_though_gone flushed_once_more "
            "flush_tried_again"
        ),
        "a failed flush poisons: nothing more is accepted": (
            "not_poisoned only_its_ring_poisoned accepted_while_there_is_room go_on_after_a_failed_flush"
        ),
        "nor recycled": "recycled_though_poisoned",
        "nor written down": "checkpoint_without_the_ring",
        "an opening has every page written again": (
            "not_rewritten trust_the_pages_that_a_failed_flush_left copies_not_rewritten letters_not_rewritten "
            "newest_slot_not_rewritten only_the_newest_slot_rewritten voided_not_rewritten "
            "rewritten_behind_the_checkpoint"
        ),
        "a position is committed to Kafka once it is durable": "flush_nothing_before_a_commit commit_without_a_flush",
    },
}

ALONE = (  # each in a test of its own
    faults.no_seal,
    faults.header_in_front_only,
    faults.not_sealed_by_its_reader,
    faults.sealed_behind_the_next_header,
    test_strangers.look_once,
    test_signals.test_what_is_advanced_behind_the_store_lets_a_handler_overwrite_or_repeat,
    test_enumeration.test_a_reader_that_reports_or_finds_less_is_noticed,
)


def of_the_log() -> set[str]:
    """What is planted on this machine, by name."""
    scenarios = (test_planted_faults, test_planted_files, test_planted_owners, test_planted_slots)
    walks = [*test_model_faults.FAULTS, *test_model_faults.OTHERS]
    planted: list[Callable[..., object]] = [fault for module in scenarios for _, fault in module.PLANTED]
    planted += [fault for fault, _ in walks]
    planted += [*test_model_faults.IN_TRANSACTIONS, *test_model_faults.RARE]
    planted += [*faults.PLANTED, *failed_flush_faults.PLANTED, *test_group_commit.FAULTS, *ALONE]
    return {fault.__name__ for fault in planted}


def in_the_table() -> set[str]:
    return {name for rules in RULES.values() for names in rules.values() for name in names.split()}


def test_each_rule_has_a_fault_that_is_planted() -> None:
    nowhere = in_the_table() - of_the_log() - set(crash_faults.FAULTS)
    assert not nowhere
    assert all(names.split() for rules in RULES.values() for names in rules.values())


def test_each_fault_takes_a_rule_away() -> None:
    assert not of_the_log() - in_the_table()


def test_what_may_be_done_otherwise_is_no_rule_but_for_what_is_told_unread() -> None:
    free = {otherwise.__name__ for otherwise in faults.FREE}
    assert free & in_the_table() == {"sealed_behind_the_next_header"}
