"""A seed, and lines of progress, for all proofs."""

import secrets

__all__ = ["chosen", "progress"]


def chosen(seed: int | None) -> int:
    """Return the seed that was asked for, or a random one."""
    return secrets.randbelow(1_000_000) if seed is None else seed


def progress(line: str) -> None:
    """Print one line of a proof that goes on."""
    print(f"  {line}", flush=True)
