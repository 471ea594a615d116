"""A real broker that wants to know who asks: TLS, passwords, and rights that are given and taken away."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

import trustme
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

__all__ = ["MECHANISMS", "PASSWORD", "USER", "SecuredKafka"]

MECHANISMS = ("PLAIN", "SCRAM-SHA-512")
USER = "publisher"
PASSWORD = "right"  # noqa: S105 - of a broker that lives for some seconds, on this machine only

_NAME = "SECURED"
_PREFIX = f"listener.name.{_NAME.lower()}."
_MODULES = "org.apache.kafka.common.security"
_HEAP_MB = 256
_ANSWER_WITHIN_S = 30
_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Whoever comes through the plain port, the node itself above all, may do everything.
        "super.users": "User:ANONYMOUS",
        f"{_PREFIX}sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{_PREFIX}plain.sasl.jaas.config": f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";',
        f"{_PREFIX}scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
    }
)


class SecuredKafka(KafkaCluster):
    """One node with a second port, for `USER`, who may do nothing until it is granted.

    The first port is as in every other cluster: topics are made and read through it, by a super user.
    """

    def __init__(self) -> None:
        self._authority = trustme.CA()
        super().__init__(1, {**_SETTINGS, **_certificate(self._authority)}, heap_mb=_HEAP_MB)
        self._ports: ReservedPorts | None = None

    @property
    def secured_servers(self) -> str:
        assert self._ports is not None, "this cluster is not started"
        return f"127.0.0.1:{self._ports.numbers[0]}"

    def start(self) -> None:
        self._ports = ReservedPorts(1)
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
        """What a client of the second port is made with, by aiokafka's names."""
        context = create_ssl_context(cadata=self._authority.cert_pem.bytes().decode())
        return {
            "bootstrap_servers": self.secured_servers,
            "security_protocol": "SASL_SSL",
            "ssl_context": context,
            "sasl_mechanism": mechanism,
            "sasl_plain_username": USER,
            "sasl_plain_password": password,
        }

    def set_password(self, password: str) -> None:
        """From now on this is `USER`'s for SCRAM; that for PLAIN stays `PASSWORD`."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)  # 4096 is the least that Kafka takes
        change = UserScramCredentialUpsertion(USER, info, password.encode())
        self._ask(lambda admin: admin.alter_user_scram_credentials([change]))

    def grant(self, name: str, right: str = "WRITE", kind: str = "TOPIC") -> None:
        """Give `USER` a right by Kafka's name of it; whoever may write may see the topic too."""
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
        own = Listener(_NAME, self.secured_servers, self.secured_servers, "SASL_SSL")
        return [*super()._listeners(node_id, address, controller), own]


def _right_to(name: str, right: str, kind: str) -> tuple[Any, ...]:
    exactly = ResourcePatternType.LITERAL
    return ResourceType[kind], name, exactly, f"User:{USER}", "*", AclOperation[right], AclPermissionType.ALLOW


def _certificate(authority: trustme.CA) -> dict[str, str]:
    issued = authority.issue_cert("127.0.0.1")
    key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    return {
        f"{_PREFIX}ssl.keystore.type": "PEM",
        f"{_PREFIX}ssl.keystore.certificate.chain": "".join(part.bytes().decode() for part in issued.cert_chain_pems),
        # The one notation that Kafka reads.
        f"{_PREFIX}ssl.keystore.key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
    }
