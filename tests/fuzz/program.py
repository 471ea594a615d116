"""The bytes of an input, read as a little program: whoever makes them up need not know what they mean.

The same targets are driven by atheris, by hypothesis and by seeded random numbers.
"""


class Program:
    """Numbers and bytes from an input, in order; zeros once it is used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def number(self, size: int = 1) -> int:
        """An unsigned number of ``size`` bytes."""
        return int.from_bytes(self.bytes(size).ljust(size, b"\0"), "big")

    def below(self, bound: int) -> int:
        """A number from 0 to ``bound`` - 1; ``bound`` is at most 2^24."""
        return self.number(1 if bound <= 1 << 8 else 2 if bound <= 1 << 16 else 3) % bound

    def bytes(self, count: int) -> bytes:
        """Up to ``count`` bytes: what is left."""
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken
