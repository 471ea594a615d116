"""Where the classes of brokers, and of Spark, are kept, loaded and verified once.

With them a broker starts with a third less work, and a Spark that has little to do with nearly half: 5.5 s of a core
instead of 9.7. Java makes such an archive when a process ends by itself (`tests.support.broker.archive_classes`,
`tests.spark.archive`), and goes without it, with a word in its log, where it does not fit.
"""

import hashlib
from pathlib import Path

__all__ = ["archive_of", "sharing"]


def archive_of(java: Path, jars: Path, name: Path | None = None) -> Path:
    """The file, there or not; another one for each Java and for other jars.

    ``name``: what it is called but for that, and where it is; None: as the directory of jars, and beside it.
    """
    binary = java.resolve()
    parts = [binary, *sorted(jars.glob("*.jar"))]
    told = [f"{part} {part.stat().st_size} {part.stat().st_mtime_ns}" for part in parts]
    name = name or jars
    return name.with_name(f"{name.name}-{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}.jsa")


def sharing(java: Path, jars: Path, name: Path | None = None) -> list[str]:
    """Options for Java; ``name``: as of `archive_of`."""
    archive = archive_of(java, jars, name)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
