"""The rows of a landed Parquet table that readers see: read with pyarrow, not with Spark."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

__all__ = ["ID_COLUMNS", "landed_ids", "read_batches", "read_files"]

ID_COLUMNS = ["producer_id", "epoch", "sequence"]
_ID = "{producer_id}/{epoch}/{sequence}"


def read_batches(target: Path, columns: list[str]) -> Iterator[pa.Table]:
    """Yield these columns of each batch, in the order of the batches' names."""
    for directory in sorted(target.glob("batch_id=*")):
        yield ds.dataset(directory, format="parquet").to_table(columns)


def landed_ids(target: Path) -> Counter[str | None]:
    """Count the rows of each id; None: rows without an id."""
    ids: Counter[str | None] = Counter()
    for rows in read_batches(target, ID_COLUMNS):
        ids.update(_ID.format(**row) if row["sequence"] else None for row in rows.to_pylist())
    return ids


def read_files(directory: Path) -> dict[str, bytes]:
    """Return the contents of all files below the directory, hidden ones too."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
