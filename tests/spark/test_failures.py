"""What Spark says in pages, in a sentence: the innermost of what it tells, and what that means."""

import pytest

from aiorecover.spark.failures import cause_of, failure_of, meaning_of

JAVA = """An error occurred while calling o55.count.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2856)
\tSuppressed: java.lang.IllegalStateException: also
\t\tat here
Caused by: org.apache.spark.SparkException: Task failed while writing rows.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailed(QueryExecutionErrors.scala:500)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 12 more
"""
PROXY = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [FOREACH_BATCH_USER_FUNCTION_ERROR]
=== Streaming Query ===
Identifier: x
JVM stacktrace:
org.apache.spark.sql.streaming.StreamingQueryException: [STREAM_FAILED]
\tat org.apache.spark.x
Caused by: py4j.Py4JException: Return Message: Traceback (most recent call last):
  File "/aiorecover/spark/landing.py", line 1, in land_batch
    self._land()
{last}

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""
IN_PYTHON = PROXY.format(last="KeyError: 'rows'")
IN_JAVA = PROXY.format(last=f"py4j.protocol.Py4JJavaError: {JAVA}")
WITHOUT_CAUSE = PROXY.format(
    last="py4j.protocol.Py4JJavaError: An error occurred\n: java.lang.OutOfMemoryError: heap\n\tat x"
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (JAVA, "java.io.IOException: No space left on device"),
        (IN_PYTHON, "KeyError: 'rows'"),
        (IN_JAVA, "java.io.IOException: No space left on device"),
        (WITHOUT_CAUSE, "java.lang.OutOfMemoryError: heap"),
        ("\n[Errno 2] No such file or directory: '/x'", "[Errno 2] No such file or directory: '/x'"),
        ("", ""),
    ],
)
def test_the_innermost_error_is_the_cause(text: str, cause: str) -> None:
    assert cause_of(text) == cause


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (IN_JAVA, "a disk is full: free some where the target, the checkpoint and spark.local.dir are"),
        (WITHOUT_CAUSE, "Java ran out of memory: give it more"),
        (IN_PYTHON, "start again, and if that ends likewise, mend what the error says"),
    ],
)
def test_the_last_line_of_a_failure_says_what_to_do_and_the_lines_before_what_led_to_it(text: str, advice: str) -> None:
    *before, last = failure_of(text).splitlines()
    assert last.startswith(f"Spark failed, {advice}")
    assert last.endswith(f"error={cause_of(text)!r}")
    assert len(before) == len(set(before)) <= 20
    assert not any(line.startswith("\t") and line.strip().startswith(("at ", "...")) for line in before)


def test_an_error_of_python_keeps_the_place_where_it_was_raised() -> None:
    assert '  File "/aiorecover/spark/landing.py", line 1, in land_batch' in failure_of(IN_PYTHON).splitlines()


def test_the_plan_of_a_query_is_left_out() -> None:
    assert "Identifier: x" not in failure_of(IN_JAVA)


def test_what_is_to_be_mended_is_one_line_and_what_nobody_can_mend_has_no_meaning() -> None:
    refused = "x\norg.apache.kafka.common.errors.GroupAuthorizationException: Not authorized: spark-kafka-1\n\tat y"
    said = meaning_of(refused)
    assert said is not None
    assert said.startswith("Kafka does not let this user read in Spark's consumer groups: grant Read on groups")
    assert said.endswith(
        "error='org.apache.kafka.common.errors.GroupAuthorizationException: Not authorized: spark-kafka-1'"
    )
    assert meaning_of(JAVA) is None


def test_an_address_that_is_none_is_one_line() -> None:
    cause = "org.apache.kafka.common.config.ConfigException: Invalid url in bootstrap.servers: junk"
    said = meaning_of(f"x\n: org.apache.kafka.common.KafkaException: y\n\tat z\nCaused by: {cause}\n\t... 12 more")
    assert said is not None
    assert said.startswith("this is no address of Kafka: check bootstrap_servers, host:port,host:port ")
    assert (said.endswith(f"{cause}'"), "\n" in said) == (True, False)
