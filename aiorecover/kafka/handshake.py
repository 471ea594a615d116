"""One connection to a broker: TCP, TLS, versions, login; and why it failed, in plain words."""

import asyncio
import encodings.idna  # noqa: F401 - else a look-up imports it, and a fork meanwhile leaves the child without
import logging
import socket
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from aiokafka import errors as kafka
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator
from aiokafka.protocol.admin import SaslAuthenticateRequest
from aiokafka.protocol.api import RequestStruct

CONNECT_S = 10.0  # TCP, TLS, the negotiation of versions, and login
FIRST_CONNECT_S = 3.0  # the first time; doubled up to the one above while an address does not answer
TOKEN_S = 60.0  # that a token provider may take beside that: some ask a person, or a slow identity service
FAILURES = (
    kafka.KafkaError,
    OSError,
    RuntimeError,
)  # TimeoutError is an OSError; RuntimeError: uvloop's closed transports

_OPTIONS = (
    *("client_id", "ssl_context", "security_protocol", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password"),
    *("sasl_kerberos_service_name", "sasl_kerberos_domain_name", "sasl_oauth_token_provider"),
)
_REFUSED = (
    kafka.AuthenticationFailedError,
    kafka.SaslAuthenticationFailed,
    kafka.UnsupportedSaslMechanismError,
    kafka.IllegalSaslStateError,
    kafka.AuthenticationMethodNotSupported,
)


def _without_logins(record: logging.LogRecord) -> bool:
    """Filter out the lines in which aiokafka, at DEBUG, would write a password in the clear."""
    logins = (
        one.API_KEY == SaslAuthenticateRequest.API_KEY for one in record.args or () if isinstance(one, RequestStruct)
    )
    return not any(logins)


logging.getLogger("aiokafka.conn").addFilter(_without_logins)


class TokenError(kafka.KafkaError):
    """The caller's token provider gave no token."""


CREDENTIALS = (*_REFUSED, TokenError)  # after these nothing is tried again soon: brokers lock accounts


class Tokens(AbstractTokenProvider):
    """The caller's token provider, with a limit, and named where it fails; no message contains a token."""

    def __init__(self, provider: AbstractTokenProvider) -> None:
        self._provider = provider

    async def token(self) -> str:
        """Return the caller's token.

        Raises:
            TokenError: there is none.

        """
        try:
            async with asyncio.timeout(TOKEN_S):
                found = await self._provider.token()
        except TimeoutError:
            raise TokenError(f"sasl_oauth_token_provider gave no token within {TOKEN_S:.0f} s") from None
        except Exception as error:  # noqa: BLE001 - the caller's; its text may contain the token
            raise TokenError(f"sasl_oauth_token_provider raised {type(error).__qualname__}") from None
        if not isinstance(found, str) or not found:
            raise TokenError(f"sasl_oauth_token_provider gave no text type={type(found).__qualname__}")
        return found

    def extensions(self) -> dict[str, str]:
        """Return the caller's extensions."""
        found: dict[str, str] = self._provider.extensions()
        return found


class Names:
    """Looks names up, each in a thread of its own.

    asyncio does it in the loop's default executor. A name server that does not answer would fill that one, attempt by
    attempt: nothing else in the process gets a thread then, `stop` neither, and `asyncio.run` waits for all of them.
    """

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], Future[object]] = {}

    async def look_up(self, host: str, port: int) -> None:
        """Wait until the name has been looked up; a look-up that still runs is shared.

        Raises:
            OSError: the name is not known.
            RuntimeError: there is no thread for it.

        """
        answer = self._asked.get((host, port)) or self._begin(host, port)
        await asyncio.wrap_future(answer)

    def _begin(self, host: str, port: int) -> "Future[object]":
        answer = self._asked[host, port] = Future()
        answer.set_running_or_notify_cancel()  # so that a caller who gives up leaves it to the next one
        thread = threading.Thread(target=self._ask, args=(host, port, answer), name="aiorecover-names", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            del self._asked[host, port]  # the next attempt begins anew
            raise
        return answer

    def _ask(self, host: str, port: int, answer: "Future[object]") -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except Exception as error:  # noqa: BLE001 - the caller's
            del self._asked[host, port]
            answer.set_exception(error)
        else:
            del self._asked[host, port]
            answer.set_result(found)


class Link(AIOKafkaConnection):
    """aiokafka's connection; it knows how far it came.

    Attributes:
        named: the name server has answered.
        established: TCP and TLS are there.

    """

    def __init__(self, host: str, port: int, options: Mapping[str, Any], on_close: Any) -> None:
        """``options``: aiokafka's, for its client."""
        super().__init__(  # type: ignore[no-untyped-call]
            host,
            port,
            request_timeout_ms=options.get("request_timeout_ms", 40_000),
            max_idle_ms=options.get("connections_max_idle_ms", 540_000),
            on_close=on_close,
            **{name: options[name] for name in _OPTIONS if name in options},
        )
        self.named = self.established = False
        self._limit: asyncio.Timeout | None = None

    async def open(self, limit_s: float, names: Names) -> None:
        """Look the name up, connect and log in.

        Raises:
            KafkaError, OSError, RuntimeError, TimeoutError, AssertionError, ValueError: it came to nothing; `explain`.

        """
        async with asyncio.timeout(limit_s) as self._limit:
            await names.look_up(self.host, self.port)
            self.named = True
            self.wait_longer(limit_s)  # asyncio looks the name up once more
            await self.connect()  # type: ignore[no-untyped-call]

    def send(self, request: Any, expect_response: bool = True) -> Any:  # noqa: FBT001, FBT002 - aiokafka's
        """Send a request; the first one asks for the broker's versions."""
        self.established = True
        return super().send(request, expect_response)  # type: ignore[no-untyped-call]

    def authenticator_oauth(self) -> "_TokenLogin":
        """Return what logs in with a token."""
        return _TokenLogin(self, self._sasl_oauth_token_provider)

    def wait_longer(self, seconds: float) -> None:
        """Let `open` take so long from now on."""
        assert self._limit is not None
        self._limit.reschedule(asyncio.get_running_loop().time() + seconds)


class _TokenLogin(OAuthAuthenticator):
    """aiokafka's takes the broker's refusal of a token for success, and counts the wait for one as the broker's."""

    def __init__(self, link: Link, provider: AbstractTokenProvider) -> None:
        super().__init__(sasl_oauth_token_provider=provider)  # type: ignore[no-untyped-call]
        self._link = link

    async def step(self, payload: bytes | None) -> Any:
        if payload:
            raise kafka.SaslAuthenticationFailed(f"the token is refused: {payload.decode(errors='replace')}")
        self._link.wait_longer(TOKEN_S + CONNECT_S)
        found = await super().step(payload)  # type: ignore[no-untyped-call]
        self._link.wait_longer(CONNECT_S)
        return found


def explain(error: BaseException, link: Link, options: Mapping[str, Any], *, advertised: bool) -> str:
    """Say what has gone wrong with a connection; ``advertised``: Kafka named the address, not the caller."""
    address = f"{link.host}:{link.port}"
    if isinstance(error, TokenError):
        return str(error.args[0])
    if isinstance(error, _REFUSED):
        return f"kafka refuses the credentials: mend them broker={address} error={error}"
    secured = str(options.get("security_protocol", "PLAINTEXT")).endswith("SSL")
    if not link.named and isinstance(error, TimeoutError):
        return f"{address} cannot be reached: the name server does not answer"
    if not link.established:
        return _explain_connecting(error, address, secured=secured, advertised=advertised)
    ending = "does not answer" if isinstance(error, TimeoutError) else "closes it, or answers nonsense"
    wanted = "a certificate of the client (ssl_context)" if secured else "TLS (security_protocol)"
    return f"{address} takes the connection and then {ending}: perhaps it wants {wanted}, or is not Kafka"


def _explain_connecting(error: BaseException, address: str, *, secured: bool, advertised: bool) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted: check ssl_context broker={address} {error.verify_message}"
    closed = isinstance(error, ConnectionError | EOFError) and not isinstance(error, ConnectionRefusedError)
    if secured and (closed or isinstance(error, ssl.SSLError)):
        reason = getattr(error, "reason", None) or _reason(error)
        return f"no TLS with {address}: {reason}; perhaps the port is without TLS, or it is not Kafka"
    whose = f"kafka advertises {address}, which" if advertised else address
    return f"{whose} cannot be reached: {_reason(error)}"


def explain_closed(link: Link) -> str:
    """Say why a broker that has answered with its versions closes the connection at the first request."""
    hint = "perhaps it wants a login (security_protocol, sasl_mechanism)"
    return f"{link.host}:{link.port} closes the connection at the first request: {hint}"


class Patience:
    """Time limits of connecting, for each address: short at first, so that a dead one is named soon."""

    def __init__(self) -> None:
        self._slow: dict[tuple[str, int], int] = {}

    def limit_s(self, address: tuple[str, int]) -> float:
        """Return the time limit of the next attempt, in seconds."""
        return float(min(CONNECT_S, FIRST_CONNECT_S * 2 ** self._slow.get(address, 0)))

    def enter(self, address: tuple[str, int], *, slow: bool) -> None:
        """Remember whether an attempt ran into its limit."""
        if slow:
            self._slow[address] = min(4, self._slow.get(address, 0) + 1)
        else:
            self._slow.pop(address, None)


def _reason(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "the name is not known"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "the connection is refused"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
