"""Options: what is taken, what follows from it, and that each refusal names the option and says what to do."""

import dataclasses
import inspect
import ssl
import typing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, codec
from aiokafka.abc import AbstractTokenProvider

from aiorecover import ConfigError, RecoverableProducer
from aiorecover import config as module
from aiorecover.config import KIB, MIB, Config, Options

SERVERS = "localhost:9092"
SASL = {"security_protocol": "SASL_PLAINTEXT"}
CONTEXT = ssl.create_default_context()


def config(**options: Any) -> Config:
    return Config.from_options("wal", SERVERS, options)


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config(**options)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


async def later(value: object) -> bytes:
    return str(value).encode()


class Tokens(AbstractTokenProvider):  # type: ignore[misc, unused-ignore]
    async def token(self) -> str:
        return "token"


# --- one list of options: types, checks, attributes


def test_types_checks_and_attributes_are_of_the_same_options() -> None:
    ours, passed_on = set(module._CHECKS), set(module._CLIENT_CHECKS)
    assert set(Options.__annotations__) == ours | passed_on
    assert {one.name for one in dataclasses.fields(Config)} == ours | {
        *("wal_dir", "files", "bootstrap_servers", "client")
    }
    told, kept = typing.get_type_hints(Options), typing.get_type_hints(Config)
    assert {name: told[name] for name in ours} == {name: kept[name] for name in ours}


def test_every_literal_of_the_types_passes_the_check_and_no_other_word() -> None:
    words = {name: typing.get_args(kind) for name, kind in typing.get_type_hints(Options).items()}
    checks = {**module._CHECKS, **module._CLIENT_CHECKS}
    literals = {
        name: choices for name, choices in words.items() if choices and all(isinstance(one, str) for one in choices)
    }
    assert {
        "guarantee",
        "fsync",
        "on_full",
        "on_permanent_error",
        "security_protocol",
        "sasl_mechanism",
    } <= literals.keys()
    for name, choices in literals.items():
        for choice in choices:
            assert checks[name](name, choice) == choice
        with pytest.raises(ConfigError, match=f"^{name} must be one of"):
            checks[name](name, "sometimes")


def test_the_producer_says_its_options_by_their_types() -> None:
    (kind,) = typing.get_args(inspect.signature(RecoverableProducer).parameters["options"].annotation)
    assert kind is Options


def test_every_option_of_the_installed_aiokafka_is_known_or_refused_with_a_reason() -> None:
    for name in inspect.signature(AIOKafkaProducer.__init__).parameters:
        if name not in {"self", "bootstrap_servers"}:
            try:
                config(**{name: object()})
            except ConfigError as error:
                assert "unknown option" not in str(error), name  # noqa: PT017


# --- what follows from what is given


def test_sizes_and_pauses_left_out_follow_from_those_given() -> None:
    assert config(max_request_size=100_000).max_batch_size == 100_000
    assert config(max_request_size=4 * MIB).max_batch_size == 256 * KIB
    assert config(retry_backoff_ms=20_000).retry_backoff_max_ms == 20_000


def test_options_of_aiokafka_s_client_pass_through_and_none_of_ours() -> None:
    given: dict[str, Any] = {
        "client_id": "me",
        "compression_type": "gzip",
        "connections_max_idle_ms": None,
        "metadata_max_age_ms": 1000,
        "security_protocol": "SSL",
        "ssl_context": CONTEXT,
    }
    assert dict(config(**given, linger_ms=1, request_timeout_ms=3000, sasl_plain_username=None).client) == given


def test_a_config_keeps_what_was_given_and_shows_no_password() -> None:
    options: dict[str, Any] = {**SASL, "sasl_plain_username": "me", "sasl_plain_password": "secret"}
    made = Config.from_options("wal", SERVERS, options)
    options["sasl_plain_username"] = "another"
    assert made.client["sasl_plain_username"] == "me"
    assert "secret" not in repr(made)


@pytest.mark.parametrize(
    "options",
    [
        {"linger_ms": 0, "stop_timeout_ms": 0, "wal_min_free_bytes": 0, "adoption_grace_ms": 0},
        {"adoption_grace_ms": None, "delivery_timeout_ms": None, "wal_min_free_bytes": None},
        {"max_request_size": 63 * MIB, "wal_max_bytes": 252 * MIB},
        {"on_full": "wait", "full_timeout_ms": 5000, "adoption_grace_ms": None},
        {"full_timeout_ms": 5000},  # an adopter keeps a directory for a third of it
        {"instance": "a.B_1-c", "full_timeout_ms": 5000},
        {"delivery_timeout_ms": 1_100, "request_timeout_ms": 1_000, "linger_ms": 100},
        {"key_serializer": str.encode, "on_delivery": print},
    ],
    ids=str,
)
def test_options_that_are_unusual_are_taken(options: dict[str, Any]) -> None:
    made = config(**options)
    assert {name: getattr(made, name) for name in options} == options


@pytest.mark.parametrize(
    "options", [{"acks": "all"}, {"acks": -1}, {"enable_idempotence": True}, {"loop": None}], ids=str
)
def test_an_option_that_the_library_decides_may_be_given_with_its_own_value(options: dict[str, Any]) -> None:
    assert config(**options) == config()


# --- refusals


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"linger": 1}, "unknown option: did you mean linger_ms? option=linger"),
        ({"linger.ms": 1}, "unknown option: did you mean linger_ms?"),
        ({"compresion_type": 1}, "unknown option: did you mean compression_type?"),
        ({"value_serialiser": str}, "unknown option: did you mean value_serializer?"),
        ({"zzz": 1}, "unknown option: leave it out option=zzz"),
        ({"slot_bytes": 1}, "unknown option: leave it out option=slot_bytes"),
        ({"acks": 1}, 'acks cannot be set: only acks="all" keeps what was acknowledged: leave it out acks=1'),
        ({"enable_idempotence": False}, "enable_idempotence cannot be set: order and recovery rest on idempotence"),
        ({"transactional_id": "me"}, "transactional_id cannot be set: the library names its transactions"),
        ({"api_version": "auto"}, "api_version cannot be set: versions are negotiated with the broker: leave it out"),
        ({"recovery_check": 1}, "recovery_check must be True or False"),
        ({"name": ""}, "name must be a str of 1 to 249"),
        ({"name": "\udc80"}, "name must be a str of 1 to 249"),
        ({"instance": "../up"}, "instance must be a folder's name"),
        ({"instance": ".hidden"}, "instance must be a folder's name"),
        ({"on_delivery": "print"}, "on_delivery must be callable"),
        ({"partitioner": 1}, "partitioner must be callable"),
        ({"value_serializer": 3}, "value_serializer must be callable, have serialize"),
        ({"key_serializer": later}, "key_serializer must not be async"),
        ({"dead_letter_topic": "not a topic"}, "dead_letter_topic must be a topic's name"),
        ({"compression_type": "brotli"}, "compression_type must be one of"),
        ({"ssl_context": "ca.pem"}, "ssl_context must be an ssl.SSLContext"),
        ({"wal_max_bytes": 8 * MIB - 1}, "wal_max_bytes must be from 8388608"),
        ({"max_request_size": 64 * MIB, "wal_max_bytes": 1 << 30}, "max_request_size must be from 1 to 66060288"),
        ({"max_request_size": 4 * MIB, "wal_max_bytes": 8 * MIB}, "wal_max_bytes must be 4 times max_request_size"),
        ({"max_batch_size": 2 * MIB}, "max_batch_size must not be above max_request_size: lower it"),
        ({"request_timeout_ms": 2**31}, "request_timeout_ms must be from 1 to 2147483647"),
        ({"retry_backoff_max_ms": 10}, "retry_backoff_max_ms must not be below retry_backoff_ms: raise it"),
        ({"full_timeout_ms": 5000, "adoption_grace_ms": None}, "full_timeout_ms has no effect: set on_full="),
        (
            {"delivery_timeout_ms": 40_004},
            "delivery_timeout_ms must not be below linger_ms + request_timeout_ms: raise",
        ),
        ({"delivery_timeout_ms": 60_000, "on_permanent_error": "halt"}, "delivery_timeout_ms makes dead letters"),
        ({"dead_letter_topic": "d", "on_permanent_error": "halt"}, "dead_letter_topic gets nothing under"),
        ({"audit_topic": "d", "dead_letter_topic": "d"}, "audit_topic must not be dead_letter_topic"),
        ({"security_protocol": "SSL"}, "ssl_context is missing: pass an ssl.SSLContext"),
        ({"ssl_context": CONTEXT}, "ssl_context is not used: use SSL or SASL_SSL"),
        (SASL, "sasl_plain_username is missing"),
        ({**SASL, "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "me"}, "sasl_plain_password is missing"),
        ({**SASL, "sasl_mechanism": "OAUTHBEARER"}, "sasl_oauth_token_provider is missing"),
        ({"sasl_plain_username": "me"}, "sasl_plain_username is not used without SASL: set security_protocol"),
        ({"sasl_mechanism": "GSSAPI"}, "sasl_mechanism is not used without SASL: set security_protocol"),
    ],
    ids=lambda case: (
        "".join(f"{name}={value!r:.12} " for name, value in case.items()) if case.__class__ is dict else ""
    ),
)
def test_a_wrong_option_is_refused_by_name_with_a_remedy(options: dict[str, Any], start: str) -> None:
    assert refusal(**options).startswith(start)


WHOLE = [name for name, kind in typing.get_type_hints(Options).items() if kind in (int, int | None)]


@pytest.mark.parametrize("name", WHOLE)
def test_a_number_is_a_whole_one_and_not_negative(name: str) -> None:
    for value in (True, 1.5, "1", b"1"):
        text = refusal(**{name: value})
        assert text.startswith(f"{name} must be an int ")
        assert text.endswith(f"{name}={value!r}")
    assert refusal(**{name: -1}).startswith(f"{name} must be from ")


def test_a_compression_without_its_library_is_refused_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "cramjam", None)
    assert config(compression_type="gzip").client == {"compression_type": "gzip"}
    for name in ("snappy", "lz4", "zstd"):
        assert "pip install cramjam" in refusal(compression_type=name)


# --- security


@pytest.mark.parametrize(
    "options",
    [
        {"sasl_mechanism": "GSSAPI", **SASL},
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Tokens(), **SASL},
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "me", "sasl_plain_password": "x", **SASL},
        {"security_protocol": "PLAINTEXT", "sasl_plain_username": "me"},  # left over from another environment
        {"sasl_mechanism": "PLAIN"},  # aiokafka's default
    ],
    ids="+".join,
)
def test_complete_logins_and_harmless_rests_are_taken(options: dict[str, Any]) -> None:
    assert options.items() <= config(**options).client.items()


@pytest.mark.parametrize(
    "name", [name for name in module._CLIENT_CHECKS if name.startswith("sasl_") and name != "sasl_mechanism"]
)
def test_a_credential_of_the_wrong_type_is_refused_and_not_repeated(name: str) -> None:
    text = refusal(**{name: [b"secret"]})
    assert text.startswith(f"{name} must be a")
    assert text.endswith("or None type=list")


def test_no_secret_is_repeated() -> None:
    assert "secret" not in refusal(**SASL, sasl_plain_password="secret")  # noqa: S106
    assert "secret" not in refusal(sasl_plain_password="secret")  # noqa: S106
    with pytest.raises(ConfigError) as caught:
        Config.from_options("wal", "kafka://me:secret@host:9092", {})
    assert "secret" not in str(caught.value)


# --- where


def test_the_directory_is_absolute_from_the_start_and_nothing_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [Config.from_options(wal_dir, SERVERS, {}) for wal_dir in ("wal", "./wal", "x/../wal", Path("wal"))]
    monkeypatch.chdir("/")
    assert {one.wal_dir for one in made} == {tmp_path / "wal"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wal_dir", ["", "  ", "a\0b", None, b"wal", 1, ["wal"], "~/wal", "\ud800"], ids=repr)
def test_a_wrong_wal_dir_is_refused(wal_dir: object) -> None:
    with pytest.raises(ConfigError, match=r"^wal_dir "):
        Config.from_options(wal_dir, SERVERS, {})


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("localhost", ("localhost:9092",)),
        (" a:1 , b:65535 ", ("a:1", "b:65535")),
        (["a.example.org:1", "10.0.0.1:2"], ("a.example.org:1", "10.0.0.1:2")),
        ("[::1]:9092", ("[::1]:9092",)),
        ("[fe80::1%eth0]", ("[fe80::1%eth0]:9092",)),
    ],
)
def test_servers_are_taken_as_text_or_as_a_list(servers: object, expected: tuple[str, ...]) -> None:
    assert Config.from_options("wal", servers, {}).bootstrap_servers == expected


@pytest.mark.parametrize(
    "servers",
    ["", [], None, b"a:1", {"a:1"}, 9092, [9092], "a:1,", "a:0", "a:65536", ":9092", "::1", "http://a:1", "a b:1"],
    ids=repr,
)
def test_a_wrong_server_is_refused(servers: object) -> None:
    with pytest.raises(ConfigError, match=r"^bootstrap_servers must be "):
        Config.from_options("wal", servers, {})
