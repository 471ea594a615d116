"""Every known defect of the Java ancestor, and every test of its C++ relative, with the tests here that answer to it.

The ancestor is hevoio's recoverable-kafka-producer on BigQueue; the relative is modern-cpp-kafka with its
KafkaRecoverableProducer.
"""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[1]


class Row(NamedTuple):
    """What was wrong, or was to be shown, and the tests that show it here."""

    what: str
    tests: tuple[str, ...]


# By its number in the list of defects, the worst first.
DEFECTS: dict[int, Row] = {
    1: Row(
        "over the disk threshold records were dropped in silence",
        (
            "tests/test_producer.py::test_a_full_ring_refuses_and_goes_on_once_delivery_freed_it",
            "tests/test_bad_input.py::test_a_full_disk_refuses_each_record_plainly_and_keeps_and_delivers_what_it_took",
            "tests/test_dead_letters.py::test_a_full_ring_refuses_to_requeue_and_the_letters_stay",
        ),
    ),
    2: Row(
        "a recovery while the broker was down lost everything, and blocked",
        (
            "tests/crash/test_outages.py::test_an_outage_that_outlasts_the_process_costs_nothing",
            "tests/crash/test_outages.py::test_what_is_published_before_the_broker_is_up_is_delivered_once_it_is",
        ),
    ),
    3: Row(
        "pages were deleted by their modification time, unacknowledged ones among them",
        (
            "tests/wal/test_ring.py::test_a_slot_is_recycled_only_when_a_durable_watermark_covers_it",
            "tests/wal/test_ring.py::test_a_slot_with_one_frame_that_waits_is_not_recycled_nor_any_behind_it",
            "tests/wal/test_recovery.py::test_lives_are_in_the_order_of_their_ordinals_wherever_they_stand",
        ),
    ),
    4: Row(
        "retries that ran before the recovery moved the checkpoint past what was not recovered",
        (
            "tests/wal/test_ring.py::test_slots_of_earlier_epochs_are_recycled_once_they_are_read_and_settled",
            "tests/wal/test_ring.py::test_the_watermark_goes_up_to_the_first_thing_that_is_not_settled",
            "tests/delivery/test_exactly_once.py::test_what_was_in_flight_waits_for_room_and_goes_before_all_else",
        ),
    ),
    5: Row(
        "one exception ended the checkpoints for ever",
        (
            "tests/test_background.py::test_a_loop_that_meets_what_it_does_not_expect_goes_on_after_a_pause",
            "tests/test_supervised.py::test_an_error_that_it_does_not_expect_is_logged_with_its_traceback_and_it_goes_on",
            (
                "tests/delivery/test_supervision.py::"
                "test_a_task_of_ours_that_somebody_cancels_shows_in_the_state_and_is_begun_again"
            ),
        ),
    ),
    6: Row(
        "records that overtook a stalled one moved the checkpoint past it, and it went back afterwards",
        (
            "tests/wal/test_ring.py::test_settled_in_any_order_a_reopened_ring_has_exactly_the_others_in_order",
            "tests/wal/test_ring.py::test_a_slot_with_one_frame_that_waits_is_not_recycled_nor_any_behind_it",
            "tests/wal/test_ring.py::test_a_watermark_never_goes_back",
        ),
    ),
    7: Row(
        "another option at the next start made it fail for ever",
        (
            "tests/wal/test_recovery.py::test_the_stored_slot_size_wins_over_the_option",
            "tests/test_bad_input.py::test_a_directory_made_with_smaller_slots_says_what_does_not_fit",
        ),
    ),
    8: Row(
        "an empty or damaged checkpoint made it fail for ever",
        (
            "tests/wal/test_checkpoint.py::test_a_file_that_was_cut_anywhere_still_opens",
            "tests/wal/test_directory.py::test_one_checkpoint_destroyed_is_no_event",
            (
                "tests/wal/test_directory.py::"
                "test_both_checkpoints_destroyed_are_rebuilt_from_the_slots_with_an_epoch_above_all"
            ),
        ),
    ),
    9: Row(
        "after every crash some acknowledged records were sent again",
        (
            "tests/crash/test_kill_cycles.py::test_every_accepted_record_survives_ten_kills_in_order_and_once",
            "tests/crash/test_identity.py::test_nothing_is_missing_repeated_or_out_of_order_after_twenty_kills",
        ),
    ),
    10: Row(
        "partition, headers and timestamp were lost, null and empty confused",
        (
            "tests/test_lessons.py::test_everything_of_a_record_is_the_same_after_a_restart",
            "tests/test_producer.py::test_null_and_empty_stay_different",
            "tests/test_producer.py::test_context_and_reports_are_the_same_after_a_restart",
        ),
    ),
    11: Row(
        "a poison record was sent for ever, 300,000 times a second, before all others",
        (
            (
                "tests/delivery/test_poison.py::"
                "test_one_poison_record_in_ten_thousand_becomes_a_dead_letter_and_the_others_arrive_in_order"
            ),
            "tests/delivery/test_refused.py::test_one_poison_record_anywhere_costs_at_most_two_log_n_and_two_sends",
            "tests/delivery/test_refused.py::test_a_frame_that_holds_and_is_no_record_is_a_dead_letter",
        ),
    ),
    12: Row(
        "closing left threads that went on writing, and could not be done twice",
        (
            "tests/test_producer.py::test_after_stop_no_task_thread_descriptor_or_mapping_is_left",
            "tests/wal/test_ring.py::test_closing_twice_is_harmless",
            "tests/delivery/test_session.py::test_closing_twice_changes_nothing",
        ),
    ),
    13: Row(
        "a full disk was an internal error from then on, or the end of the process",
        (
            (
                "tests/faults/test_full_disk.py::"
                "test_each_allocation_that_a_full_disk_refuses_is_told_and_costs_nothing_that_was_accepted"
            ),
            "tests/wal/test_ring.py::test_a_full_disk_harms_nothing_leaves_no_hole_and_is_over_when_it_is_over",
        ),
    ),
    14: Row(
        "a power cut left zeros and garbage that were sent",
        (
            "tests/wal/test_sync.py::test_what_a_group_commit_released_survives_a_power_cut",
            "tests/wal/test_format.py::test_no_bit_of_a_frame_flips_unseen",
            (
                "tests/testing/test_memory_disk.py::"
                "test_a_power_cut_takes_what_was_acknowledged_never_under_always_and_for_some_seed_under_never"
            ),
        ),
    ),
    15: Row(
        "two processes could open one directory",
        (
            "tests/test_producer.py::test_workers_of_one_wal_dir_take_a_directory_each",
            "tests/wal/test_directory.py::test_a_named_instance_is_refused_while_another_process_has_it_and_says_who",
        ),
    ),
    16: Row(
        "what found no room in the retry queue was lost",
        (
            "tests/delivery/test_refused.py::test_a_full_dead_ring_halts_its_lane_alone_until_there_is_room",
            "tests/delivery/test_refused.py::test_a_dead_ring_that_cannot_be_flushed_settles_nothing",
            "tests/wal/test_moving.py::test_a_move_that_finds_no_room_goes_on_where_it_stood_or_is_as_if_it_had_never_begun",
        ),
    ),
    17: Row(
        "the order of the log was not the order in Kafka",
        (
            "tests/test_producer.py::test_a_hundred_thousand_records_arrive_once_and_in_order",
            "tests/test_loop_behaviour.py::test_four_threads_publish_each_in_its_order",
            "tests/delivery/test_poison.py::test_only_poison_becomes_dead_letters_and_the_lane_lives_on",
        ),
    ),
    18: Row(
        "callbacks were told of a failure at each attempt and of a success in the end",
        (
            "tests/test_lessons.py::test_a_frozen_broker_costs_no_report_and_each_comes_once_and_in_the_loop_s_thread",
            (
                "tests/delivery/test_refused.py::"
                "test_who_waits_and_who_asks_later_are_told_and_on_delivery_hears_it_before"
            ),
        ),
    ),
    19: Row(
        "memory without a bound, counts that overflow, time limits that end nothing",
        (
            "tests/delivery/test_lane.py::test_so_many_batches_wait_at_most",
            "tests/delivery/test_reports.py::test_nothing_is_read_or_kept_for_records_that_nobody_asks_about",
            "tests/wal/test_format.py::test_the_highest_position_is_a_signed_64_bit_integer",
            "tests/test_time_limits.py::test_without_a_broker_every_call_ends_in_its_time_and_stop_leaves_nothing",
        ),
    ),
    20: Row(
        "a record larger than a page broke the queue",
        (
            "tests/wal/test_ring.py::test_the_largest_record_fills_a_slot_and_one_byte_more_is_refused",
            "tests/test_bad_input.py::test_records_too_large_for_kafka_or_for_a_slot_are_refused_and_the_largest_fits",
        ),
    ),
    21: Row(
        "publishers waited while pages were flushed and deleted",
        (
            "tests/test_lessons.py::test_publishers_do_not_wait_for_a_checkpoint_whose_flush_hangs",
            "tests/wal/test_room.py::test_not_more_than_a_few_are_cut_off_at_once_and_the_next_look_goes_on",
        ),
    ),
}

_PENDING = "tests/test_producer.py::test_delivered_times_out_without_a_broker_and_says_not_to_publish_again"
_STOP = "tests/test_producer.py::test_stop_is_bounded_without_a_broker_and_says_what_is_left"
_ONCE_EACH = "tests/test_lessons.py::test_a_frozen_broker_costs_no_report_and_each_comes_once_and_in_the_loop_s_thread"
_IN_ORDER = "tests/test_producer.py::test_a_hundred_thousand_records_arrive_once_and_in_order"

# By the relative's own names of its tests.
TESTS: dict[str, Row] = {
    "KafkaProducer.SendMessagesWithAcks1": Row(
        "acks=1 loses records: it is refused",
        ("tests/test_config.py::test_an_option_of_aiokafka_that_would_break_a_promise_is_refused",),
    ),
    "KafkaProducer.SendMessagesWithAcksAll": Row("all arrive in order", (_IN_ORDER,)),
    "KafkaProducer.FailToSendMessagesWithAcksAll": Row(
        "too few replicas in sync: a time-out, and the record still arrives",
        ("tests/test_lessons.py::test_with_too_few_replicas_a_record_waits_and_its_publisher_is_told_so",),
    ),
    "KafkaProducer.InSyncBrokersAckTimeout": Row(
        "no acknowledgement in time",
        (_PENDING, "tests/delivery/test_session.py::test_a_frozen_broker_that_thaws_has_the_batch_once"),
    ),
    "KafkaProducer.DefaultPartitioner": Row(
        "keys go where Kafka's clients send them, the others everywhere",
        (
            "tests/test_producer.py::test_keys_go_where_kafkas_own_clients_send_them",
            "tests/delivery/test_router.py::test_records_without_a_key_visit_every_partition_in_turn",
        ),
    ),
    "KafkaProducer.TryOtherPartitioners": Row(
        "partitioners of the user's, the empty key, nonsense refused",
        (
            "tests/test_producer.py::test_a_partitioner_with_aiokafkas_signature_decides",
            "tests/delivery/test_router.py::test_an_empty_key_is_a_key",
            "tests/test_config.py::test_a_value_of_the_wrong_kind_is_refused_by_name",
        ),
    ),
    "KafkaProducer.RecordWithEmptyOrNullFields": Row(
        "null and empty are kept apart", ("tests/test_producer.py::test_null_and_empty_stay_different",)
    ),
    "KafkaProducer.ThreadCount": Row(
        "no thread is left", ("tests/test_producer.py::test_after_stop_no_task_thread_descriptor_or_mapping_is_left",)
    ),
    "KafkaProducer.MessageDeliveryCallback": Row(
        "everybody is told before it ends",
        (
            "tests/test_producer.py::test_on_delivery_is_called_for_each_record_with_its_context",
            "tests/delivery/test_reports.py::test_closing_tells_whoever_waits_and_whoever_asks_afterwards",
        ),
    ),
    "KafkaProducer.DeliveryCallback_ManuallyPollEvents": Row("callbacks in the caller's thread", (_ONCE_EACH,)),
    "KafkaProducer.NoBlockSendingWhileQueueIsFull": Row(
        "a full queue refuses, and only what was accepted is delivered",
        ("tests/test_producer.py::test_a_full_ring_refuses_and_goes_on_once_delivery_freed_it",),
    ),
    "KafkaProducer.TooLargeMessageForBroker": Row(
        "the broker's limit hits the record above it alone",
        (
            (
                "tests/delivery/test_poison.py::"
                "test_one_poison_record_in_ten_thousand_becomes_a_dead_letter_and_the_others_arrive_in_order"
            ),
        ),
    ),
    "KafkaProducer.CopyRecordValueWithinSend": Row(
        "the caller may use its buffer again",
        ("tests/test_bad_input.py::test_what_the_publisher_changes_afterwards_does_not_reach_kafka",),
    ),
    "KafkaRecoverableProducer.SendMessages": Row(
        "sent both ways, in order, none lost",
        (_IN_ORDER, "tests/test_producer.py::test_aiokafkas_methods_keep_their_signatures_and_results"),
    ),
    "KafkaRecoverableProducer.MockFatalError": Row(
        "the client dies again and again, and nobody has to send anything again",
        (
            "tests/delivery/test_session.py::test_every_task_of_aiokafka_cancelled_from_outside_is_survived",
            "tests/delivery/test_supervision.py::test_a_producer_that_kafka_no_longer_follows_goes_on",
            "tests/crash/test_identity.py::test_nothing_is_missing_repeated_or_out_of_order_after_twenty_kills",
        ),
    ),
    "robustness.RecordTimestamp": Row(
        "the time is that of the call, however late it arrives, or of its coming where the topic says so",
        (
            "tests/test_lessons.py::test_everything_of_a_record_is_the_same_after_a_restart",
            "tests/test_loop_behaviour.py::test_a_record_that_waited_for_room_has_the_time_of_its_call",
            (
                "tests/test_lessons.py::"
                "test_a_report_has_the_time_of_the_call_and_so_has_the_record_unless_its_topic_stamps_it_late"
            ),
        ),
    ),
    "robustness.NoMissedDeliveryCallback": Row("a frozen broker: every callback once", (_ONCE_EACH,)),
    "robustness.DeliveryCallbackTriggeredByPurgeWithinClose": Row(
        "closing without a broker is bounded and tells everybody; nothing is purged, it stays in the ring",
        (_STOP, "tests/delivery/test_reports.py::test_closing_tells_whoever_waits_and_whoever_asks_afterwards"),
    ),
    "robustness.BrokerStopWhileSendingMessages": Row(
        "a broker that stops for a while costs nothing",
        ("tests/crash/test_outages.py::test_a_broker_that_goes_away_under_load_costs_publishers_nothing",),
    ),
    "robustness.Send_AckTimeout": Row("no acknowledgement in time", (_PENDING,)),
    "robustness.ManuallyPollEvents_AckTimeout": Row("the same; there is no polling here", (_PENDING,)),
    "robustness.ManuallyPollEvents_AlwaysFinishClosing": Row(
        "closing ends, whatever the caller does not do",
        (
            _STOP,
            "tests/test_time_limits.py::test_an_on_delivery_that_ignores_its_cancellation_keeps_no_connection_open",
        ),
    ),
    "robustness.SyncSend_AckTimeout": Row(
        "a send that waits ends in time; its record stays to be delivered",
        (
            "tests/test_producer.py::test_send_and_wait_cancelled_delivers_all_the_same",
            "tests/test_time_limits.py::test_without_a_broker_every_call_ends_in_its_time_and_stop_leaves_nothing",
        ),
    ),
    "Transaction.CommitTransaction": Row(
        "what is committed is seen, and nothing else",
        (
            (
                "tests/delivery/test_exactly_once_mode.py::"
                "test_what_is_in_a_transaction_is_seen_when_it_is_committed_and_never_if_it_is_not"
            ),
            "tests/delivery/test_transactions.py::test_nobody_is_told_and_nothing_is_settled_before_the_commit",
            "tests/crash/test_transactions.py::test_a_process_that_a_copy_has_taken_over_from_commits_nothing_more",
        ),
    ),
    "Transaction.CatchException": Row(
        "errors of a transaction's state",
        (
            ("tests/delivery/test_transaction.py::test_a_transaction_in_another_state_than_aiokafka_expects_is_lost"),
            (
                "tests/delivery/test_transactions.py::"
                "test_a_commit_that_fails_is_made_again_with_all_that_was_in_it_and_told_once"
            ),
        ),
    ),
    "Transaction.ContinueTheTransaction": Row(
        "only what is committed is seen after a restart",
        (
            ("tests/crash/test_transactions.py::test_killed_in_each_step_everything_is_committed_once_and_in_order"),
            (
                "tests/delivery/test_transactional_lives.py::"
                "test_wherever_a_process_dies_each_record_is_committed_once_and_in_order"
            ),
        ),
    ),
    "Transaction.ContinueTheTransaction2": Row(
        "exactly once after a restart",
        (
            "tests/crash/test_transactions.py::test_nothing_is_missing_repeated_or_out_of_order_after_ten_kills",
            (
                "tests/delivery/test_transactional_lives.py::"
                "test_what_is_committed_and_not_settled_is_told_of_and_not_sent_again"
            ),
        ),
    ),
    "Transaction.DeliveryFailure": Row(
        "a time-out inside a transaction: nothing is seen",
        (
            (
                "tests/delivery/test_exactly_once_mode.py::"
                "test_as_long_as_a_batch_is_not_answered_nothing_of_its_transaction_is_seen"
            ),
            "tests/delivery/test_transactions.py::test_a_batch_that_is_not_answered_holds_up_the_commit",
            "tests/delivery/test_transaction.py::test_each_step_ends",
            "tests/delivery/test_transactions.py::test_lost_while_it_is_answered_all_goes_into_the_next_one",
        ),
    ),
}
_OF_OTHERS = 28

ROWS = [*DEFECTS.values(), *TESTS.values()]
COUNTERPARTS = sorted({test for row in ROWS for test in row.tests})


def test_the_table_has_a_row_for_everything_and_none_is_without_a_test() -> None:
    assert list(DEFECTS) == list(range(1, 22))
    assert len(TESTS) == _OF_OTHERS
    print(f"{len(COUNTERPARTS)} tests answer to {len(ROWS)} rows")
    assert [row for row in ROWS if not row.tests] == []


@pytest.mark.timeout(240)
def test_every_counterpart_is_there_and_is_not_skipped() -> None:
    """What a fixture skips, for want of something, `conftest` makes a failure in CI."""
    assert collected(COUNTERPARTS) == set(COUNTERPARTS)


def test_a_counterpart_that_is_gone_or_skipped_is_missed(tmp_path: Path) -> None:
    file = tmp_path / "test_marked.py"
    file.write_text(
        "import pytest\n"
        "def test_runs(): pass\n"
        "@pytest.mark.skip\ndef test_skipped(): pass\n"
        "@pytest.mark.skipif(True, reason='so')\ndef test_skipped_maybe(): pass\n"
        "@pytest.mark.xfail\ndef test_fails(): pass\n"
    )
    assert {test.rpartition("::")[2] for test in collected([str(file)])} == {"test_runs"}
    with pytest.raises(AssertionError, match="not found"):
        collected([f"{file}::test_runs", f"{file}::test_is_gone"])


def collected(tests: list[str]) -> set[str]:
    """What pytest would run of these, without the names of their cases."""
    wanted = "not skip and not skipif and not xfail"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", wanted, *tests]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return {line.partition("[")[0] for line in ran.stdout.splitlines() if "::" in line}
