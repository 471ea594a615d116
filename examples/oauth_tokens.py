"""Tokens of an identity provider (OAuth's client credentials), for a Kafka that wants OAUTHBEARER.

The variables ``TOKEN_URL``, ``CLIENT_ID`` and ``CLIENT_SECRET`` name the provider and the login, ``KAFKA`` the brokers.
The producer asks for a token for each connection, and again before a login ends. While the provider is down, records
wait in the ring, the log names it, and `publish` goes on.
"""

import asyncio
import json
import os
import ssl
import sys
import time
import urllib.parse
import urllib.request
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from aiorecover import RecoverableProducer

LOGIN = ("TOKEN_URL", "CLIENT_ID", "CLIENT_SECRET")


class ClientCredentials(AbstractTokenProvider):
    """Asks in a thread, and again once four fifths of a token's life are over."""

    def __init__(self, url: str, client_id: str, client_secret: str) -> None:
        asked = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": client_secret}
        self._request = urllib.request.Request(url, urllib.parse.urlencode(asked).encode())  # noqa: S310 - yours
        self._token, self._until = "", 0.0

    async def token(self) -> str:
        now = time.monotonic()
        if now >= self._until:
            answer = await asyncio.to_thread(self._ask)
            self._token, self._until = answer["access_token"], now + 0.8 * answer["expires_in"]
        return self._token

    def _ask(self) -> dict[str, Any]:
        with urllib.request.urlopen(self._request, timeout=30) as answer:  # noqa: S310 - yours
            found: dict[str, Any] = json.load(answer)
        return found


async def main() -> None:
    protocol = os.environ.get("SECURITY_PROTOCOL", "SASL_SSL")
    tokens = ClientCredentials(*(os.environ[name] for name in LOGIN))
    async with RecoverableProducer(
        os.environ.get("WAL_DIR", "wal"),
        bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"),
        security_protocol=protocol,  # type: ignore[arg-type]  # the producer checks it
        ssl_context=ssl.create_default_context() if protocol == "SASL_SSL" else None,
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=tokens,
    ) as producer:
        receipt = await producer.publish(os.environ.get("TOPIC", "orders"), {"id": 1, "item": "tea"}, key="1")
        report = await receipt.delivered(timeout_ms=10_000)
        print("in Kafka", report.partition, report.offset)


if __name__ == "__main__":
    if absent := [name for name in LOGIN if name not in os.environ]:
        sys.exit(f"set {' and '.join(absent)}, as your identity provider has given them to you")
    asyncio.run(main())
