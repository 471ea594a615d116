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
        ("tests/crash/test_stalled_partition.py::test_the_others_go_on_and_the_stalled_one_follows_in_order",),
    ),
    4: Row(
        "retries that ran before the recovery moved the checkpoint past what was not recovered",
        ("tests/crash/test_kill_cycles.py::test_every_accepted_record_survives_ten_kills_in_order_and_once",),
    ),
    5: Row(
        "one exception ended the checkpoints for ever",
        ("tests/test_time_limits.py::test_once_the_trouble_is_over_everything_arrives",),
    ),
    6: Row(
        "records that overtook a stalled one moved the checkpoint past it, and it went back afterwards",
        ("tests/crash/test_stalled_partition.py::test_killed_twice_while_a_lane_is_stalled",),
    ),
    7: Row(
        "another option at the next start made it fail for ever",
        ("tests/test_bad_input.py::test_a_directory_made_with_smaller_slots_says_what_does_not_fit",),
    ),
    8: Row(
        "an empty or damaged checkpoint made it fail for ever",
        ("tests/crash/test_transactions.py::test_without_any_checkpoint_everything_is_committed_once_and_in_order",),
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
            "tests/test_poison.py::test_one_poison_record_in_ten_thousand_becomes_a_dead_letter_and_the_others_arrive_in_order",
        ),
    ),
    12: Row(
        "closing left threads that went on writing, and could not be done twice",
        ("tests/test_producer.py::test_after_stop_no_task_thread_descriptor_or_mapping_is_left",),
    ),
    13: Row(
        "a full disk was an internal error from then on, or the end of the process",
        (
            "tests/faults/test_full_disk.py::test_each_allocation_that_a_full_disk_refuses_is_told_and_costs_nothing_that_was_accepted",
        ),
    ),
    14: Row(
        "a power cut left zeros and garbage that were sent",
        ("tests/test_damage.py::test_a_producer_keeps_what_is_damaged_and_counts_what_is_missing",),
    ),
    15: Row(
        "two processes could open one directory",
        ("tests/test_producer.py::test_workers_of_one_wal_dir_take_a_directory_each",),
    ),
    16: Row(
        "what found no room in the retry queue was lost",
        ("tests/test_full.py::test_a_dead_ring_that_is_full_and_a_main_ring_behind_it_go_on_once_somebody_purges",),
    ),
    17: Row(
        "the order of the log was not the order in Kafka",
        (
            "tests/test_producer.py::test_a_hundred_thousand_records_arrive_once_and_in_order",
            "tests/test_loop_behaviour.py::test_four_threads_publish_each_in_its_order",
            "tests/test_poison.py::test_only_poison_becomes_dead_letters_and_the_lane_lives_on",
        ),
    ),
    18: Row(
        "callbacks were told of a failure at each attempt and of a success in the end",
        ("tests/test_lessons.py::test_a_frozen_broker_costs_no_report_and_each_comes_once_and_in_the_loop_s_thread",),
    ),
    19: Row(
        "memory without a bound, counts that overflow, time limits that end nothing",
        ("tests/test_time_limits.py::test_without_a_broker_every_call_ends_in_its_time_and_stop_leaves_nothing",),
    ),
    20: Row(
        "a record larger than a page broke the queue",
        ("tests/test_bad_input.py::test_records_too_large_for_kafka_or_for_a_slot_are_refused_and_the_largest_fits",),
    ),
    21: Row(
        "publishers waited while pages were flushed and deleted",
        ("tests/test_hanging_disk.py::test_publishers_do_not_wait_for_a_checkpoint_whose_flush_hangs",),
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
        (_PENDING,),
    ),
    "KafkaProducer.DefaultPartitioner": Row(
        "keys go where Kafka's clients send them, the others everywhere",
        ("tests/test_producer.py::test_keys_go_where_kafkas_own_clients_send_them",),
    ),
    "KafkaProducer.TryOtherPartitioners": Row(
        "partitioners of the user's, the empty key, nonsense refused",
        (
            "tests/test_producer.py::test_a_partitioner_with_aiokafkas_signature_decides",
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
        ("tests/test_producer.py::test_on_delivery_is_called_for_each_record_with_its_context",),
    ),
    "KafkaProducer.DeliveryCallback_ManuallyPollEvents": Row("callbacks in the caller's thread", (_ONCE_EACH,)),
    "KafkaProducer.NoBlockSendingWhileQueueIsFull": Row(
        "a full queue refuses, and only what was accepted is delivered",
        ("tests/test_producer.py::test_a_full_ring_refuses_and_goes_on_once_delivery_freed_it",),
    ),
    "KafkaProducer.TooLargeMessageForBroker": Row(
        "the broker's limit hits the record above it alone",
        (
            "tests/test_poison.py::test_one_poison_record_in_ten_thousand_becomes_a_dead_letter_and_the_others_arrive_in_order",
        ),
    ),
    "KafkaProducer.CopyRecordValueWithinSend": Row(
        "the caller may use its buffer again",
        ("tests/test_bad_input.py::test_what_the_publisher_changes_afterwards_does_not_reach_kafka",),
    ),
    "KafkaRecoverableProducer.SendMessages": Row(
        "sent both ways, in order, none lost",
        (
            _IN_ORDER,
            "tests/test_producer.py::test_aiokafkas_methods_keep_their_signatures_and_results",
        ),
    ),
    "KafkaRecoverableProducer.MockFatalError": Row(
        "the client dies again and again, and nobody has to send anything again",
        ("tests/crash/test_identity.py::test_nothing_is_missing_repeated_or_out_of_order_after_twenty_kills",),
    ),
    "robustness.RecordTimestamp": Row(
        "the time is that of the call, however late it arrives, or of its coming where the topic says so",
        (
            "tests/test_lessons.py::test_everything_of_a_record_is_the_same_after_a_restart",
            "tests/test_loop_behaviour.py::test_a_record_that_waited_for_room_has_the_time_of_its_call",
            "tests/test_lessons.py::test_a_report_has_the_time_of_the_call_and_so_has_the_record_unless_its_topic_stamps_it_late",
        ),
    ),
    "robustness.NoMissedDeliveryCallback": Row("a frozen broker: every callback once", (_ONCE_EACH,)),
    "robustness.DeliveryCallbackTriggeredByPurgeWithinClose": Row(
        "closing without a broker is bounded and tells everybody; nothing is purged, it stays in the ring",
        (_STOP,),
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
        ("tests/crash/test_transactions.py::test_a_process_that_a_copy_has_taken_over_from_commits_nothing_more",),
    ),
    "Transaction.CatchException": Row(
        "errors of a transaction's state",
        ("tests/crash/test_transactions.py::test_where_a_coordinator_dies_everything_is_committed_once",),
    ),
    "Transaction.ContinueTheTransaction": Row(
        "only what is committed is seen after a restart",
        ("tests/crash/test_transactions.py::test_killed_in_each_step_everything_is_committed_once_and_in_order",),
    ),
    "Transaction.ContinueTheTransaction2": Row(
        "exactly once after a restart",
        ("tests/crash/test_transactions.py::test_nothing_is_missing_repeated_or_out_of_order_after_ten_kills",),
    ),
    "Transaction.DeliveryFailure": Row(
        "a time-out inside a transaction: nothing is seen",
        ("tests/test_exactly_once.py::test_a_transaction_that_takes_longer_than_it_may_is_begun_anew",),
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
