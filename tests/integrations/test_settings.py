"""Options from variables and files: each can be set there, what is wrong is named, and no secret is shown."""

import asyncio
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from aiorecover import ConfigError, RecoverableProducer
from aiorecover.config import Options
from aiorecover.integrations.settings import ProducerSettings
from aiorecover.integrations.web import lifespan
from aiorecover.testing import MockCluster
from tests.support.eventually import until

NO_TEXT = {  # functions and objects: given beside the settings
    *("on_delivery", "key_serializer", "value_serializer", "partitioner", "ssl_context", "sasl_oauth_token_provider")
}
FILES_OF_TLS = {"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password"}
SECRET = "correct-horse-battery"  # noqa: S105 - of nobody
NEEDED: dict[str, Any] = {"wal_dir": "wal", "bootstrap_servers": "localhost:1"}
PLAIN: dict[str, Any] = {
    **NEEDED,
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_plain_username": "publisher",
    "sasl_plain_password": SECRET,
}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the files are looked for."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kinds(hint: Any) -> set[Any]:
    """Return what a value may be beside None; a secret is a str."""
    union = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return {str if one is SecretStr else one for one in union} - {NoneType}


OPTIONS = {name: kinds(hint) for name, hint in get_type_hints(Options).items() if name not in NO_TEXT}


def test_each_option_that_text_can_express_is_a_setting_of_the_same_type() -> None:
    fields = {name: kinds(field.annotation) for name, field in ProducerSettings.model_fields.items()}
    beside = NEEDED.keys() | FILES_OF_TLS
    assert {name: kind for name, kind in fields.items() if name not in beside} == OPTIONS
    assert beside <= fields.keys()


def test_a_setting_comes_from_the_nearest_source_or_else_from_the_producer(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "aiorecover.toml").write_text(
        'wal_dir = "toml"\nbootstrap_servers = ["one:9092", "two:9092"]\nlinger_ms = 1\nfsync = "never"\n'
    )
    (directory / ".env").write_text(
        "DATABASE_URL=of another program\nAIORECOVER_LINGER_MS=2\nAIORECOVER_CLIENT_ID=dotenv\nAIORECOVER_NAME=dotenv\n"
    )
    monkeypatch.setenv("AIORECOVER_CLIENT_ID", "variable")
    monkeypatch.setenv("AIORECOVER_NAME", "variable")
    monkeypatch.setenv("AIORECOVER_INSTANCE", "")  # as docker compose sets what is not set
    monkeypatch.setenv("AIORECOVER_ADOPTION_GRACE_MS", "none")
    options = ProducerSettings(name="argument").options()
    assert options == {
        "wal_dir": Path("toml"),
        "bootstrap_servers": ["one:9092", "two:9092"],
        "fsync": "never",
        "linger_ms": 2,
        "client_id": "variable",
        "name": "argument",
        "adoption_grace_ms": None,
    }
    RecoverableProducer(**options)
    lifespan(**options)


def test_every_setting_is_taken_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    some = {int: 60_000, bool: False, str: "text"}
    values = {name: some.get(kind) if kind in some else get_args(kind)[0] for name, (kind,) in OPTIONS.items()}
    values |= {"wal_max_bytes": 1 << 30, "delivery_timeout_ms": 200_000, "audit_topic": "audit"}  # they fit together
    for name, value in values.items():
        monkeypatch.setenv(f"AIORECOVER_{name.upper()}", str(value))
    options = ProducerSettings(**NEEDED).options()
    assert options == {**values, **NEEDED, "wal_dir": Path("wal")}
    RecoverableProducer(**options)


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, ["wal_dir (AIORECOVER_WAL_DIR): field required", "bootstrap_servers (AIORECOVER_BOOTSTRAP_SERVERS)"]),
        ({**NEEDED, "linger_ms": "soon"}, ["linger_ms (AIORECOVER_LINGER_MS): input should be a valid integer"]),
        ({**NEEDED, "fsync": "often"}, ["fsync (AIORECOVER_FSYNC): input should be 'never', 'interval' or 'always'"]),
        ({**NEEDED, "linger": 5}, ["linger (AIORECOVER_LINGER): no setting has this name: did you mean A"]),
    ],
    ids=["nothing", "no number", "no choice", "no option"],
)
def test_each_wrong_setting_is_named_in_one_line(given: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerSettings(**given)
    assert str(caught.value).startswith("the settings are wrong: ")
    assert "\n" not in str(caught.value)
    assert [text for text in named if text not in str(caught.value)] == []


def test_a_slip_in_a_variable_is_named_and_what_kubernetes_sets_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT", "PORT_8000_TCP_ADDR", "PURE_PYTHON", "FSYNC"):
        monkeypatch.setenv(f"AIORECOVER_{name}", "always")  # FSYNC: a setting
    ProducerSettings(**NEEDED)
    assert caplog.text == ""
    for name in ("AIORECOVER_FSNC", "aiorecover_linger", "FSNC"):
        monkeypatch.setenv(name, SECRET)
    ProducerSettings(**NEEDED)
    slips = "setting_unknown no setting has this name: did you mean AIORECOVER_"
    said = {line.getMessage() for line in caplog.records}
    assert said == {
        f"{slips}FSYNC? variable=AIORECOVER_FSNC",
        f"{slips}LINGER_MS? variable=aiorecover_linger",
    }


def test_a_subclass_with_another_prefix_names_its_own_variables(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class OrdersSettings(ProducerSettings):
        model_config = SettingsConfigDict(env_prefix="ORDERS_")

    monkeypatch.setenv("ORDERS_LINGER_MS", "soon")
    monkeypatch.setenv("AIORECOVER_FSNC", "always")
    with pytest.raises(ConfigError, match=r"linger_ms \(ORDERS_LINGER_MS\): "):
        OrdersSettings(**NEEDED)
    monkeypatch.setenv("ORDERS_LINGER_MS", "7")
    monkeypatch.setenv("ORDERS_FSNC", "always")
    assert OrdersSettings(**NEEDED).linger_ms == 7
    assert [line.getMessage().partition("? ")[2] for line in caplog.records] == ["variable=ORDERS_FSNC"]


def test_a_file_that_cannot_be_read_is_named(directory: Path) -> None:
    (directory / "aiorecover.toml").write_text(f"sasl_plain_password = {SECRET}")
    with pytest.raises(ConfigError, match=r"aiorecover\.toml: .*line 1") as caught:
        ProducerSettings(**NEEDED)
    assert SECRET not in told(caught.value)
    (directory / "aiorecover.toml").write_text(f"password = '{SECRET}'")
    with pytest.raises(ConfigError, match=r"password .*: no setting has this name") as caught:
        ProducerSettings(**NEEDED)
    assert SECRET not in told(caught.value)
    (directory / "aiorecover.toml").unlink()
    (directory / ".env").write_text(f"AIORECOVER_SASL_PASSWORD={SECRET}")  # it has another name
    with pytest.raises(ConfigError, match=r"sasl_password .*: no setting has this name") as caught:
        ProducerSettings(**NEEDED)
    assert SECRET not in told(caught.value)


# -- secrets -----------------------------------------------------------------------------------------------------------


def told(error: BaseException) -> str:
    """Return what any log or tool could show of an error: all of the whole chain, with what pydantic keeps."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None:
        chain.append(one)
        one = one.__cause__ or one.__context__
    parts = [f"{one!r} {one.args} {vars(one)} {getattr(one, 'errors', list)()}" for one in chain]
    return "".join([*traceback.format_exception(error), *parts])


def certificate(directory: Path) -> dict[str, Any]:
    """Return settings with a certificate whose key has a password."""
    authority = trustme.CA()
    issued = authority.issue_cert("publisher@example.org")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    form = PrivateFormat.PKCS8
    (directory / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, form, BestAvailableEncryption(SECRET.encode())))
    files = {"ssl_cafile": "ca.pem", "ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem"}
    return {**NEEDED, "security_protocol": "SSL", **files, "ssl_password": SECRET}


def test_a_certificate_is_loaded_with_its_password(directory: Path) -> None:
    options = ProducerSettings(**certificate(directory)).options()
    assert options.keys() == {*NEEDED, "security_protocol", "ssl_context"}
    assert len(options["ssl_context"].get_ca_certs()) >= 1
    RecoverableProducer(**options)
    assert ProducerSettings(**NEEDED, security_protocol="SSL").options()["ssl_context"].check_hostname  # the system's


WRONG: dict[str, Callable[[Path], object]] = {
    "another field": lambda _: ProducerSettings(**PLAIN, linger_ms="soon"),
    "a field that is missing": lambda _: ProducerSettings(sasl_plain_password=SECRET, ssl_password=SECRET),
    "the secret's type": lambda _: ProducerSettings(**{**PLAIN, "sasl_plain_password": [SECRET]}),
    "an unknown name": lambda _: ProducerSettings(**PLAIN, password=SECRET),
    "a secret that is not used": lambda _: RecoverableProducer(
        **ProducerSettings(**{**PLAIN, "security_protocol": None}).options()
    ),
    "a conflict": lambda _: RecoverableProducer(**ProducerSettings(**PLAIN, max_batch_size=2 << 20).options()),
    "the key's password": lambda at: ProducerSettings(**{**certificate(at), "ssl_password": f"not {SECRET}"}).options(),
    "no password for the key": lambda at: ProducerSettings(
        **{**certificate(at), "ssl_password": None}, sasl_plain_password=SECRET
    ).options(),
    "a file that is missing": lambda at: ProducerSettings(**{**certificate(at), "ssl_cafile": "nowhere"}).options(),
    "files that are not used": lambda at: RecoverableProducer(
        **ProducerSettings(**{**certificate(at), "security_protocol": "PLAINTEXT"}).options()
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_no_error_shows_a_secret(directory: Path, wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WRONG[wrong](directory)
    assert SECRET not in told(caught.value)
    assert "\n" not in str(caught.value)


def test_no_picture_of_the_settings_shows_a_secret() -> None:
    settings = ProducerSettings(**PLAIN, ssl_password=SECRET)
    pictures = [repr(settings), str(settings), f"{settings}", repr(settings.model_dump()), settings.model_dump_json()]
    pictures += [repr(RecoverableProducer(**ProducerSettings(**PLAIN).options())), repr(lifespan(**settings.options()))]
    assert [picture for picture in pictures if SECRET in picture] == []
    assert "sasl_plain_password=SecretStr('**********')" in repr(settings)
    assert "linger_ms" not in repr(settings)  # what is not set does not fill the log
    assert settings.options()["sasl_plain_password"] == SECRET


@pytest.mark.asyncio
async def test_no_line_of_the_log_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with MockCluster() as cluster:  # which knows no login
        settings = ProducerSettings(**{**PLAIN, "bootstrap_servers": cluster.bootstrap_servers}, stop_timeout_ms=0)
        logging.getLogger("service").info("settings=%s", settings)
        async with RecoverableProducer(**settings.options()) as producer:
            await producer.publish("orders", b"one")
            await until(lambda: "kafka_unreachable" in caplog.text)
            await asyncio.sleep(0)
    assert SECRET not in caplog.text
