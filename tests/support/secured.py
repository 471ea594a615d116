"""A real broker with logins: TLS, certificates, passwords, tokens, and rights that come and go."""

import base64
import json
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any

import trustme
from aiokafka.abc import AbstractTokenProvider
from aiokafka.helpers import create_ssl_context
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tests.support.broker import KafkaCluster
from tests.support.ports import ReservedPorts
from tests.support.settings import Listener

__all__ = ["MECHANISMS", "PASSWORD", "SESSION_MS", "USER", "SecuredKafka", "token"]

MECHANISMS = ("PLAIN", "SCRAM-SHA-512")
USER = "publisher"
PASSWORD = "right-horse-battery"  # noqa: S105 - of a broker that lives for some seconds, on this machine only
SESSION_MS = 2000  # of a login with PLAIN at the port without TLS; then the broker closes the connection

_TLS, _CLEAR, _MUTUAL = "SECURED", "CLEAR", "MUTUAL"  # the listeners
_PROTOCOLS: Mapping[str, str] = MappingProxyType({_TLS: "SASL_SSL", _CLEAR: "SASL_PLAINTEXT", _MUTUAL: "SSL"})
_MODULES = "org.apache.kafka.common.security"
_HEAP_MB = 256
_ANSWER_WITHIN_S = 30


def _of(listener: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {f"listener.name.{listener.lower()}.{name}": value for name, value in settings.items()}


_LOGINS = {
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "plain.sasl.jaas.config": f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
    "scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
}
_TOKENS = {
    "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
    "oauthbearer.sasl.jaas.config": (
        f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    ),
    "plain.connections.max.reauth.ms": str(SESSION_MS),
}
_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The plain port, which the node itself uses, allows everything.
        "super.users": "User:ANONYMOUS",
        **_of(_TLS, _LOGINS),
        **_of(_CLEAR, _LOGINS | _TOKENS),
        **_of(_MUTUAL, {"ssl.client.auth": "required", "ssl.principal.mapping.rules": f"RULE:^.*$/{USER}/"}),
    }
)


class SecuredKafka(KafkaCluster):
    """One node with three more ports, for `USER`, who may do nothing until it is granted.

    The first port is as in every other cluster: topics are made and read through it, by a super user.
    """

    def __init__(self) -> None:
        self._authority = trustme.CA()
        settings = {**_SETTINGS, **_certificate(self._authority)}
        super().__init__(1, settings, heap_mb=_HEAP_MB)
        self._ports: ReservedPorts | None = None

    @property
    def secured_servers(self) -> str:
        """Passwords, over TLS."""
        return self._servers(_TLS)

    @property
    def clear_servers(self) -> str:
        """Passwords and tokens, without TLS."""
        return self._servers(_CLEAR)

    @property
    def mutual_servers(self) -> str:
        """Certificates."""
        return self._servers(_MUTUAL)

    def start(self) -> None:
        self._ports = ReservedPorts(len(_PROTOCOLS))
        try:
            super().start()
        except BaseException:
            self._ports.release()
            raise
        self.set_password(PASSWORD)

    def stop(self) -> None:
        super().stop()
        if self._ports is not None:
            self._ports.release()

    def options(self, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, Any]:
        """Return aiokafka's options for a client with a password, over TLS."""
        return {
            **self.clear_options(mechanism, password),
            "bootstrap_servers": self.secured_servers,
            "security_protocol": "SASL_SSL",
            "ssl_context": self._context(),
        }

    def clear_options(self, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, Any]:
        """As `options`, without TLS."""
        return {
            "bootstrap_servers": self.clear_servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": password,
        }

    def token_options(self, provider: AbstractTokenProvider) -> dict[str, Any]:
        """Return aiokafka's options for a client with tokens."""
        return {
            "bootstrap_servers": self.clear_servers,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": provider,
        }

    def authority_file(self, directory: Path) -> Path:
        """Write the certificate of the authority that a client has to trust."""
        self._authority.cert_pem.write_to_path(directory / "ca.pem")
        return directory / "ca.pem"

    def certificate_options(self) -> dict[str, Any]:
        """Return aiokafka's options for a client with a certificate of its own."""
        context = self._context()
        self._authority.issue_cert("publisher@example.org").configure_cert(context)
        return {"bootstrap_servers": self.mutual_servers, "security_protocol": "SSL", "ssl_context": context}

    def refused_logins(self) -> int:
        """How often a login has failed since the start."""
        return self.nodes[0].log_path.read_text(errors="replace").count("Failed authentication with")

    def set_password(self, password: str) -> None:
        """From now on this is `USER`'s for SCRAM; that for PLAIN stays `PASSWORD`."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)  # 4096 is the least that Kafka takes
        change = UserScramCredentialUpsertion(USER, info, password.encode())
        self._ask(lambda admin: admin.alter_user_scram_credentials([change]))

    def grant(self, name: str, right: str = "WRITE", kind: str = "TOPIC") -> None:
        """Give `USER` a right by Kafka's name of it; Write implies Describe."""
        binding = AclBinding(*_right_to(name, right, kind))
        self._ask(lambda admin: admin.create_acls([binding]))

    def revoke(self, name: str, right: str = "WRITE", kind: str = "TOPIC") -> None:
        """Take back what `grant` gave."""
        bindings = AclBindingFilter(*_right_to(name, right, kind))
        self._ask(lambda admin: admin.delete_acls([bindings]))

    def _ask(self, question: Callable[[AdminClient], Mapping[Any, "Future[Any]"]]) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        for answer in question(admin).values():
            answer.result(_ANSWER_WITHIN_S)

    def _listeners(self, node_id: int, address: str, controller: str) -> list[Listener]:
        own = [Listener(name, self._servers(name), self._servers(name), _PROTOCOLS[name]) for name in _PROTOCOLS]
        return [*super()._listeners(node_id, address, controller), *own]

    def _servers(self, listener: str) -> str:
        assert self._ports is not None, "this cluster is not started"
        return f"127.0.0.1:{self._ports.numbers[list(_PROTOCOLS).index(listener)]}"

    def _context(self) -> ssl.SSLContext:
        context: ssl.SSLContext = create_ssl_context(cadata=self._authority.cert_pem.bytes().decode())
        return context


def token(*, lives_s: float = 3600.0) -> str:
    """A token of `USER`, without a signature, as the broker of these tests takes it."""
    now = time.time()
    parts = {"alg": "none"}, {"sub": USER, "iat": now - 3600, "exp": now + lives_s}
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts) + "."


def _right_to(name: str, right: str, kind: str) -> tuple[Any, ...]:
    exactly = ResourcePatternType.LITERAL
    return ResourceType[kind], name, exactly, f"User:{USER}", "*", AclOperation[right], AclPermissionType.ALLOW


def _certificate(authority: trustme.CA) -> dict[str, str]:
    issued = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "".join(part.bytes().decode() for part in issued.cert_chain_pems),
        # The one notation that Kafka reads.
        "ssl.keystore.key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.cert_pem.bytes().decode(),
    }
    return {**_of(_TLS, settings), **_of(_MUTUAL, settings)}
