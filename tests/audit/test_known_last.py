"""The last sequences that an audit with Spark is given: one that no record has is refused before anything is read."""

import pytest

from aiorecover.errors import ConfigError
from aiorecover.record_id import EPOCH_MAX, SEQUENCE_MAX
from aiorecover.spark.auditing import audit


@pytest.mark.parametrize(("epoch", "last"), [(1, -1), (1, SEQUENCE_MAX + 1), (1, 1 << 63), (0, 1), (EPOCH_MAX + 1, 1)])
def test_a_last_sequence_that_no_record_has_is_refused_in_one_line(epoch: int, last: int) -> None:
    with pytest.raises(ConfigError, match="known_last has an epoch or a sequence that no record has: ") as raised:
        audit("table", known_last={("abcdefghij234", epoch): last})
    assert str(raised.value).endswith(f" producer_id='abcdefghij234' epoch={epoch} last={last}")
