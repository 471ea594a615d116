"""Where the brokers' classes are kept, loaded and verified once: with them a broker starts with a third less work.

Java makes such an archive when a process ends by itself (`tests.support.broker.archive_classes`), and goes without it,
with a word in its log, where it does not fit.
"""

import hashlib
from pathlib import Path

__all__ = ["archive_of", "sharing"]


def archive_of(java: Path, jars: Path) -> Path:
    """The file beside the directory of jars, there or not; another one for each Java and for other jars."""
    binary = java.resolve()
    parts = [binary, *sorted(jars.glob("*.jar"))]
    told = [f"{part} {part.stat().st_size} {part.stat().st_mtime_ns}" for part in parts]
    return jars.with_name(f"{jars.name}-{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}.jsa")


def sharing(java: Path, jars: Path) -> list[str]:
    """Options for Java."""
    archive = archive_of(java, jars)
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
