"""How much of what was written to a connection the machine at its other end has taken, as the kernel counts it.

It tells a slow line from a broker that is silent: over the one bytes go on moving; a frozen broker's machine takes what
fits its buffers, within milliseconds, and then nothing any more. What is left in the transport's buffer does not tell:
the kernel has one of megabytes behind it, and TLS another before it. A proxy that takes everything at once hides the
line behind it.
"""

import asyncio
import socket

_COUNTED_TO = 128  # bytes of the kernel's `tcp_info` (linux/tcp.h), up to and with tcpi_bytes_acked, since Linux 4.1
_COUNT_FROM = 120


def bytes_taken(writer: asyncio.StreamWriter | None) -> int:
    """Since the connection was made, with one for its opening; 0 where there is none, or it is closed or not known."""
    found = writer.get_extra_info("socket") if writer is not None else None
    if found is None:
        return 0
    try:
        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTED_TO)
    except (OSError, ValueError):  # it is closed; uvloop says so with a ValueError
        return 0
    return int.from_bytes(info[_COUNT_FROM:], "little") if len(info) == _COUNTED_TO else 0
