"""Config.from_options: what it takes, what it derives, and that every refusal names the option and a remedy."""

import dataclasses
import enum
import inspect
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, codec
from aiokafka.abc import AbstractTokenProvider

from aiorecover.config import GIB, KIB, MIB, Config
from aiorecover.errors import ConfigError

SERVERS = "localhost:9092"


def config(**options: Any) -> Config:
    return Config.from_options("wal", SERVERS, options)


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**options)
    return str(caught.value)


class Serializer:
    def serialize(self, topic: str, value: object, headers: object) -> bytes:
        return f"{topic}{value}{headers}".encode()


class AsyncSerializer:
    async def serialize(self, topic: str, value: object, headers: object) -> bytes:
        return f"{topic}{value}{headers}".encode()


async def async_serializer(value: object) -> bytes:
    return str(value).encode()


class Tokens(AbstractTokenProvider):  # type: ignore[misc, unused-ignore]
    async def token(self) -> str:
        return "token"

    def __repr__(self) -> str:  # the name of a test: the same in each process
        return "Tokens()"


class Size(enum.IntEnum):
    SMALL = 16 * KIB


# --- defaults and derived values


def test_the_defaults_are_those_of_the_documentation() -> None:
    made = config()
    assert dataclasses.asdict(dataclasses.replace(made, client={})) == {
        "wal_dir": Path.cwd() / "wal",
        "file_system": None,
        "bootstrap_servers": ("localhost:9092",),
        "client": {},
        "name": None,
        "cluster_id": None,
        "instance": None,
        "guarantee": "at_least_once",
        "fsync": "interval",
        "fsync_interval_ms": 1000,
        "checkpoint_interval_ms": 5000,
        "wal_max_bytes": 20 * GIB,
        "wal_min_free_bytes": GIB,
        "on_full": "raise",
        "full_timeout_ms": 30_000,
        "slot_bytes": 16 * MIB,
        "max_batch_size": 512 * KIB,
        "max_request_size": 1_048_576,
        "linger_ms": 5,
        "delivery_timeout_ms": None,
        "retry_backoff_ms": 100,
        "retry_backoff_max_ms": 10_000,
        "request_timeout_ms": 40_000,
        "stop_timeout_ms": 10_000,
        "on_permanent_error": "dead_letter",
        "dead_letter_topic": None,
        "on_delivery": None,
        "recovery_check": True,
        "key_serializer": None,
        "value_serializer": None,
        "partitioner": None,
        "adoption_grace_ms": 60_000,
        "audit_topic": None,
    }
    assert dict(made.client) == {}


def test_every_default_passes_its_own_check_when_given_aloud() -> None:
    defaults = {one.name: one.default for one in dataclasses.fields(Config) if one.default is not dataclasses.MISSING}
    assert config(**defaults) == config()


def test_a_config_cannot_be_changed() -> None:
    made = config(compression_type="gzip")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.linger_ms = 7  # type: ignore[misc]
    with pytest.raises(TypeError):
        made.client["compression_type"] = None  # type: ignore[index]


def test_later_changes_of_the_given_options_do_not_reach_the_config() -> None:
    options = {"client_id": "one"}
    made = Config.from_options("wal", SERVERS, options)
    options["client_id"] = "two"
    assert made.client["client_id"] == "one"


def test_sizes_left_out_follow_from_a_small_slot() -> None:
    made = config(slot_bytes=16 * KIB)
    assert (made.max_request_size, made.max_batch_size) == (15 * KIB, 15 * KIB)


def test_the_batch_size_left_out_follows_from_the_request_size() -> None:
    assert config(max_request_size=100_000).max_batch_size == 100_000
    assert config(max_request_size=4 * MIB).max_batch_size == 512 * KIB


def test_the_longest_pause_left_out_is_not_below_the_first() -> None:
    assert config(retry_backoff_ms=20_000).retry_backoff_max_ms == 20_000


def test_an_int_of_another_class_becomes_a_plain_int() -> None:
    made = config(slot_bytes=Size.SMALL)
    assert type(made.slot_bytes) is int


def test_passwords_stay_out_of_the_text_of_a_config() -> None:
    made = config(
        security_protocol="SASL_PLAINTEXT",
        sasl_plain_username="me",
        sasl_plain_password="secret",  # noqa: S106
    )
    assert "secret" not in repr(made)


# --- what goes to aiokafka


def test_options_of_aiokafka_pass_through_as_they_are() -> None:
    context = ssl.create_default_context()
    given = {
        "client_id": "me",
        "compression_type": "gzip",
        "connections_max_idle_ms": None,
        "metadata_max_age_ms": 1000,
        "security_protocol": "SSL",
        "ssl_context": context,
        "sasl_kerberos_service_name": "kafka",
    }
    assert dict(config(**given).client) == given


def test_options_that_are_ours_by_the_same_name_do_not_reach_the_client_options() -> None:
    made = config(
        linger_ms=1,
        max_batch_size=1000,
        max_request_size=2000,
        request_timeout_ms=3000,
        retry_backoff_ms=4,
        key_serializer=str.encode,
        value_serializer=str.encode,
        partitioner=lambda _key, everyone, _available: int(everyone[0]),
    )
    assert dict(made.client) == {}
    assert (made.linger_ms, made.request_timeout_ms, made.retry_backoff_ms) == (1, 3000, 4)


@pytest.mark.parametrize(
    ("name", "value"),
    [("acks", "all"), ("acks", -1), ("enable_idempotence", True), ("loop", None), ("transactional_id", None)],
)
def test_a_forced_option_given_with_the_forced_value_is_harmless(name: str, value: object) -> None:
    assert name not in config(**{name: value}).client


def test_every_option_of_the_installed_aiokafka_is_known_or_refused_with_a_reason() -> None:
    for name in inspect.signature(AIOKafkaProducer.__init__).parameters:
        if name in {"self", "bootstrap_servers"}:
            continue
        try:
            config(**{name: object()})
        except ConfigError as error:
            assert "unknown option" not in str(error), name  # noqa: PT017


# --- refusals


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("acks", 1, "leave it out"),
        ("acks", 0, "leave it out"),
        ("enable_idempotence", False, "leave it out"),
        ("transactional_id", "me", 'set guarantee="exactly_once" and leave it out'),
        ("loop", object(), "leave it out"),
        ("api_version", "auto", "leave it out"),
    ],
)
def test_an_option_of_aiokafka_that_would_break_a_promise_is_refused(name: str, value: object, remedy: str) -> None:
    text = refusal(**{name: value})
    assert text.startswith(f"{name} cannot be set: ")
    assert remedy in text


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("linger", "linger_ms"),
        ("compresion_type", "compression_type"),
        ("wal_max_byte", "wal_max_bytes"),
        ("linger.ms", "linger_ms"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_name(name: str, near: str) -> None:
    assert refusal(**{name: 1}) == f"unknown option: did you mean {near}? option={name}"


def test_an_unknown_option_like_no_other_is_to_be_left_out() -> None:
    assert refusal(zzz=1) == "unknown option: leave it out option=zzz"


WHOLE = [
    "fsync_interval_ms",
    "checkpoint_interval_ms",
    "wal_max_bytes",
    "wal_min_free_bytes",
    "full_timeout_ms",
    "slot_bytes",
    "max_batch_size",
    "max_request_size",
    "linger_ms",
    "retry_backoff_ms",
    "retry_backoff_max_ms",
    "request_timeout_ms",
    "stop_timeout_ms",
    "metadata_max_age_ms",
]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [True, 1.5, "1", None, b"1"], ids=repr)
def test_a_number_that_is_no_int_is_refused(name: str, value: object) -> None:
    text = refusal(**{name: value})
    assert text.startswith(f"{name} must be an int ")
    assert text.endswith(f"{name}={value!r}")


@pytest.mark.parametrize("name", WHOLE)
def test_a_negative_number_is_refused(name: str) -> None:
    assert refusal(**{name: -1}).startswith(f"{name} must be from ")


@pytest.mark.parametrize("name", sorted(set(WHOLE) - {"wal_min_free_bytes", "linger_ms", "stop_timeout_ms"}))
def test_zero_is_refused_where_it_cannot_work(name: str) -> None:
    assert refusal(**{name: 0}).startswith(f"{name} must be from ")


def test_zero_is_taken_where_it_means_at_once() -> None:
    made = config(linger_ms=0, stop_timeout_ms=0, wal_min_free_bytes=0, adoption_grace_ms=0)
    assert (made.linger_ms, made.stop_timeout_ms, made.wal_min_free_bytes, made.adoption_grace_ms) == (0, 0, 0, 0)


@pytest.mark.parametrize("value", [0, -1, True, 2.0])
def test_a_delivery_timeout_is_none_or_a_positive_int(value: object) -> None:
    assert config(delivery_timeout_ms=None).delivery_timeout_ms is None
    assert refusal(delivery_timeout_ms=value).startswith("delivery_timeout_ms must be ")


def test_a_delivery_timeout_leaves_time_for_the_answer_to_one_attempt() -> None:
    """Kafka's own rule."""
    assert "raise it to 40005" in refusal(delivery_timeout_ms=40_004)
    assert config(delivery_timeout_ms=40_005).delivery_timeout_ms == 40_005
    assert config(delivery_timeout_ms=1_100, request_timeout_ms=1_000, linger_ms=100).delivery_timeout_ms == 1_100


def test_a_delivery_timeout_makes_dead_letters_so_it_does_not_go_with_halting() -> None:
    text = refusal(delivery_timeout_ms=60_000, on_permanent_error="halt")
    assert "leave one of them out delivery_timeout_ms=60000" in text


@pytest.mark.parametrize("value", [-1, True, 2.0, "60000"])
def test_a_grace_period_is_none_or_an_int_from_zero_on(value: object) -> None:
    assert config(adoption_grace_ms=None).adoption_grace_ms is None
    assert refusal(adoption_grace_ms=value).startswith("adoption_grace_ms must be ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("guarantee", "exactly-once"),
        ("fsync", "sometimes"),
        ("fsync", None),
        ("on_full", "drop"),
        ("on_permanent_error", "skip"),
        ("compression_type", "brotli"),
        ("compression_type", 1),
        ("security_protocol", "TLS"),
        ("sasl_mechanism", "LOGIN"),
        ("recovery_check", 1),
        ("name", ""),
        ("name", 1),
        ("name", "x" * 250),
        ("name", "\udc80"),
        ("instance", ""),
        ("instance", ".."),
        ("instance", ".hidden"),
        ("instance", "a/b"),
        ("instance", "a\n"),
        ("instance", "x" * 65),
        ("instance", 0),
        ("on_delivery", "print"),
        ("partitioner", 1),
        ("key_serializer", 1),
        ("key_serializer", async_serializer),
        ("value_serializer", "json"),
        ("value_serializer", AsyncSerializer()),
        ("ssl_context", "ca.pem"),
        ("client_id", b"me"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_name(name: str, value: object) -> None:
    assert refusal(**{name: value}).startswith(f"{name} must ")


def test_every_kind_of_serializer_and_callback_is_taken() -> None:
    made = config(key_serializer=str.encode, value_serializer=Serializer(), on_delivery=print, instance="a.B_1-c")
    assert made.key_serializer is str.encode
    assert made.on_delivery is print


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"slot_bytes": 3 * 16 * KIB}, "slot_bytes must be a power of two"),
        ({"slot_bytes": 8 * KIB}, "slot_bytes must be from 16384"),
        ({"slot_bytes": 2 * GIB}, "slot_bytes must be from 16384"),
        ({"wal_max_bytes": 96 * MIB - 1}, "wal_max_bytes must hold 6 slots: raise it to 100663296"),
        ({"slot_bytes": 16 * KIB, "max_request_size": 16 * KIB}, "max_request_size does not fit a slot"),
        ({"max_request_size": 16 * MIB}, "max_request_size does not fit a slot"),
        ({"max_batch_size": 2 * MIB}, "max_batch_size must not be above max_request_size"),
        ({"max_batch_size": 2000, "max_request_size": 1000}, "max_batch_size must not be above"),
        ({"retry_backoff_max_ms": 10}, "retry_backoff_max_ms must not be below retry_backoff_ms"),
        ({"full_timeout_ms": 5000, "adoption_grace_ms": None}, 'full_timeout_ms has no effect: set on_full="wait" or'),
        (
            {"audit_topic": "same", "dead_letter_topic": "same"},
            "audit_topic must not be dead_letter_topic",
        ),
        (
            {"dead_letter_topic": "dead", "on_permanent_error": "halt"},
            "dead_letter_topic gets nothing under on_permanent_error",
        ),
        ({"request_timeout_ms": 2**31}, "request_timeout_ms must be from 1 to 2147483647"),
    ],
)
def test_options_that_cannot_be_meant_together_are_refused(options: dict[str, Any], start: str) -> None:
    assert refusal(**options).startswith(start)


@pytest.mark.parametrize(
    "options",
    [
        {"wal_max_bytes": 96 * MIB},
        {"slot_bytes": 16 * KIB, "wal_max_bytes": 96 * KIB},
        {"slot_bytes": GIB, "max_request_size": 64 * MIB},
        {"max_request_size": 4 * MIB, "max_batch_size": 4 * MIB},
        {"on_full": "wait", "full_timeout_ms": 5000},
        {"instance": "a", "full_timeout_ms": 5000},
        {"on_full": "raise", "full_timeout_ms": 30_000, "adoption_grace_ms": None},
        {"full_timeout_ms": 10_000},  # an adopter keeps a directory for a third of it
        {"fsync": "never", "fsync_interval_ms": 7},
        {"on_permanent_error": "halt"},
        {"guarantee": "exactly_once"},
    ],
    ids=str,
)
def test_options_that_are_unusual_or_merely_idle_are_taken(options: dict[str, Any]) -> None:
    made = config(**options)
    assert {name: getattr(made, name) for name in options} == options


def test_a_compression_without_its_library_is_refused_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("gzip", "snappy", "lz4", "zstd", None):
        assert config(compression_type=name).client == {"compression_type": name}
    monkeypatch.setattr(codec, "cramjam", None)
    assert config(compression_type="gzip").client == {"compression_type": "gzip"}
    for name in ("snappy", "lz4", "zstd"):
        assert "pip install cramjam" in refusal(compression_type=name)


# --- security


def test_tls_needs_a_context_and_a_context_needs_tls() -> None:
    context = ssl.create_default_context()
    assert refusal(security_protocol="SSL").startswith("ssl_context is missing")
    assert refusal(security_protocol="SASL_SSL").startswith("ssl_context is missing")
    assert refusal(ssl_context=context).startswith("ssl_context is not used")
    assert config(security_protocol="SSL", ssl_context=context).client["ssl_context"] is context


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({}, "sasl_plain_username"),
        ({"sasl_plain_username": "me"}, "sasl_plain_password"),
        ({"sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "me"}, "sasl_plain_password"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "sasl_oauth_token_provider"),
    ],
)
def test_a_sasl_mechanism_needs_its_credentials(options: dict[str, Any], missing: str) -> None:
    assert refusal(security_protocol="SASL_PLAINTEXT", **options).startswith(f"{missing} is missing")


@pytest.mark.parametrize(
    "options",
    [
        {"sasl_mechanism": "GSSAPI"},
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Tokens()},
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "me", "sasl_plain_password": "x"},
    ],
    ids=lambda options: options["sasl_mechanism"],
)
def test_complete_sasl_options_are_taken(options: dict[str, Any]) -> None:
    assert options.items() <= config(security_protocol="SASL_PLAINTEXT", **options).client.items()


@pytest.mark.parametrize("protocol", [None, "PLAINTEXT", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("value", [1, [1], b"secret", object], ids=repr)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sasl_plain_username", "a str"),
        ("sasl_plain_password", "a str"),
        ("sasl_kerberos_service_name", "a str"),
        ("sasl_kerberos_domain_name", "a str"),
        ("sasl_oauth_token_provider", "an aiokafka.abc.AbstractTokenProvider"),
    ],
)
def test_a_credential_of_the_wrong_type_is_refused_as_such_with_and_without_sasl(
    name: str, kind: str, value: object, protocol: str | None
) -> None:
    options = {} if protocol is None else {"security_protocol": protocol}
    assert refusal(**options, **{name: value}) == f"{name} must be {kind}, or None type={type(value).__qualname__}"


@pytest.mark.parametrize(
    "options",
    [
        {"sasl_mechanism": "PLAIN", "sasl_plain_username": "me", "sasl_plain_password": "secret"},
        {"sasl_plain_username": "me", "sasl_plain_password": "secret"},
        {"sasl_mechanism": "SCRAM-SHA-256"},
        {"sasl_mechanism": "GSSAPI"},
        {"sasl_oauth_token_provider": Tokens()},
    ],
    ids=str,
)
def test_a_login_without_a_word_on_the_protocol_is_refused_for_nobody_would_log_in(options: dict[str, Any]) -> None:
    text = refusal(**options)
    assert text.startswith("sasl_")
    assert 'is not used without SASL: set security_protocol="SASL_SSL"' in text
    assert "secret" not in text
    assert options.items() <= config(security_protocol="PLAINTEXT", **options).client.items()


def test_aiokafka_s_own_defaults_of_a_login_are_harmless() -> None:
    config(sasl_mechanism="PLAIN", sasl_plain_username=None, sasl_plain_password=None, sasl_oauth_token_provider=None)


def test_credentials_left_over_without_sasl_are_harmless_and_their_values_never_shown() -> None:
    left_over = {"sasl_plain_username": "me", "sasl_plain_password": "x"}
    assert left_over.items() <= config(security_protocol="PLAINTEXT", **left_over).client.items()
    text = refusal(security_protocol="SASL_PLAINTEXT", sasl_plain_password="secret")  # noqa: S106
    assert "secret" not in text


# --- where: wal_dir and bootstrap_servers


@pytest.mark.parametrize("wal_dir", ["wal", "./wal", "x/../wal", Path("wal")], ids=repr)
def test_the_directory_is_made_absolute_without_touching_it(
    wal_dir: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = Config.from_options(wal_dir, SERVERS, {})
    assert made.wal_dir == Path.cwd() / "wal"
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_the_directory_stays_where_it_was_meant_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = config()
    monkeypatch.chdir("/")
    assert made.wal_dir == tmp_path / "wal"


@pytest.mark.parametrize("wal_dir", ["", "  ", "a\0b", None, b"wal", 1, ["wal"], "~/wal", "~", "\ud800"], ids=repr)
def test_what_names_no_directory_is_refused(wal_dir: object) -> None:
    with pytest.raises(ConfigError, match=r"^wal_dir "):
        Config.from_options(wal_dir, SERVERS, {})


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("localhost:9092", ("localhost:9092",)),
        ("localhost", ("localhost:9092",)),
        ("a:1,b:65535", ("a:1", "b:65535")),
        (" a:1 , b:2 ", ("a:1", "b:2")),
        (["a.example.org:1", "10.0.0.1:2"], ("a.example.org:1", "10.0.0.1:2")),
        (("a:1",), ("a:1",)),
        ("[::1]:9092", ("[::1]:9092",)),
        ("[fe80::1%eth0]", ("[fe80::1%eth0]:9092",)),
    ],
)
def test_servers_are_taken_as_text_or_as_a_list(servers: object, expected: tuple[str, ...]) -> None:
    assert Config.from_options("wal", servers, {}).bootstrap_servers == expected


@pytest.mark.parametrize(
    "servers",
    [
        "",
        [],
        (),
        None,
        b"localhost:9092",
        {"localhost:9092"},
        9092,
        [9092],
        [""],
        "a:1,",
        "a:0",
        "a:65536",
        "a:-1",
        "a:port",
        ":9092",
        "a:",
        "::1",
        "http://a:1",
        "PLAINTEXT://a:1",
        "a b:1",
        ["a:1,b:2"],
        "\udc80:1",
    ],
    ids=repr,
)
def test_what_is_no_server_is_refused(servers: object) -> None:
    with pytest.raises(ConfigError, match=r"^bootstrap_servers must be "):
        Config.from_options("wal", servers, {})


def test_a_password_in_a_server_s_address_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_options("wal", "kafka://me:secret@host:9092", {})
    assert "secret" not in str(caught.value)
