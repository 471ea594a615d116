"""The rows of a landed table that a reader is to see: read with pyarrow, not with Spark."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

__all__ = ["ID_COLUMNS", "batches", "files", "landed_ids"]

ID_COLUMNS = ["producer_id", "epoch", "sequence"]
_ID = "{producer_id}/{epoch}/{sequence}"


def batches(target: Path, columns: list[str]) -> Iterator[pa.Table]:
    """These columns of each batch."""
    for directory in sorted(target.glob("batch_id=*")):
        yield ds.dataset(directory, format="parquet").to_table(columns)


def landed_ids(target: Path) -> Counter[str | None]:
    """How often each id stands there."""
    found: Counter[str | None] = Counter()
    for rows in batches(target, ID_COLUMNS):
        found.update(_ID.format(**row) if row["sequence"] else None for row in rows.to_pylist())
    return found


def files(directory: Path) -> dict[str, bytes]:
    """All that stands there, hidden or not."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
