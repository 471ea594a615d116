"""CRC-32, the polynomial of zlib, by the fastest implementation at hand.

The extra ``speed`` installs isal, several times as fast. Both give the same numbers: a ring may be written with one
and read with the other.
"""

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
