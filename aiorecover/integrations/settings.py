"""The options of a producer from environment variables, ``.env`` and TOML, with pydantic-settings.

>>> producer = RecoverableProducer(**ProducerSettings().options())  # doctest: +SKIP
"""

import difflib
import logging
import os
import ssl
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from aiokafka.helpers import create_ssl_context

from aiorecover.extras import extra

with extra("settings"):
    from pydantic import BeforeValidator, SecretStr, ValidationError
    from pydantic_settings import (
        BaseSettings,
        PydanticBaseSettingsSource,
        SettingsConfigDict,
        SettingsError,
        TomlConfigSettingsSource,
    )

from aiorecover import ConfigError

__all__ = ["ProducerSettings"]

PREFIX = "AIORECOVER_"
ALIKE = 0.7  # a name that is less like a setting's is another program's, as AIORECOVER_SERVICE_HOST of Kubernetes

_log = logging.getLogger("aiorecover")

Milliseconds = Annotated[int | None, BeforeValidator(lambda value: None if value == "none" else value)]
"""A number, or the word ``none``, which neither a variable nor TOML can say otherwise."""


class ProducerSettings(BaseSettings):
    """Each option that text can express, as docs/options.md describes it; what is not set has the producer's default.

    Sources, the first wins: arguments, variables ``AIORECOVER_WAL_DIR`` and so on, ``.env``, ``aiorecover.toml``.
    Subclass it with another ``model_config`` for other names. Functions, serializers and token providers go to the
    producer beside `options`.

    Attributes:
        ssl_cafile: certificates to trust, PEM; None: the system's. With the three below it makes the ``ssl_context``
            for ``security_protocol`` "SSL" and "SASL_SSL".
        ssl_certfile: the client's own certificate, PEM.
        ssl_keyfile: its key; None: it is in ``ssl_certfile``.
        ssl_password: of the key.

    Raises:
        ConfigError: something is missing or wrong; the message names all of it, and no value.

    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,
        dotenv_filtering="match_prefix",  # the file is others', too
        toml_file="aiorecover.toml",
        extra="forbid",
        hide_input_in_errors=True,
    )

    wal_dir: Path
    bootstrap_servers: str | list[str]
    name: str | None = None
    cluster_id: str | None = None
    instance: str | None = None
    guarantee: Literal["at_least_once", "exactly_once"] | None = None
    fsync: Literal["never", "interval", "always"] | None = None
    fsync_interval_ms: int | None = None
    checkpoint_interval_ms: int | None = None
    wal_max_bytes: int | None = None
    wal_min_free_bytes: int | None = None
    on_full: Literal["raise", "wait"] | None = None
    full_timeout_ms: int | None = None
    max_batch_size: int | None = None
    max_request_size: int | None = None
    linger_ms: int | None = None
    delivery_timeout_ms: Milliseconds = None
    retry_backoff_ms: int | None = None
    retry_backoff_max_ms: int | None = None
    request_timeout_ms: int | None = None
    stop_timeout_ms: int | None = None
    on_permanent_error: Literal["dead_letter", "halt"] | None = None
    dead_letter_topic: str | None = None
    recovery_check: bool | None = None
    adoption_grace_ms: Milliseconds = None
    audit_topic: str | None = None
    client_id: str | None = None
    compression_type: Literal["gzip", "snappy", "lz4", "zstd"] | None = None
    connections_max_idle_ms: Milliseconds = None
    metadata_max_age_ms: int | None = None
    transaction_timeout_ms: int | None = None
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] | None = None
    sasl_mechanism: Literal["PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    sasl_plain_username: str | None = None
    sasl_plain_password: SecretStr | None = None
    sasl_kerberos_service_name: str | None = None
    sasl_kerberos_domain_name: str | None = None
    ssl_cafile: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    ssl_password: SecretStr | None = None

    def __init__(self, **values: Any) -> None:
        """Read and check; ``values`` win over every source."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            wrong = self._named(error)
        except SettingsError as error:  # which names the variable alone
            wrong = str(error)
        except tomllib.TOMLDecodeError as error:
            wrong = f"{self.model_config.get('toml_file')}: {error}"
        else:
            self._warn_of_slips()
            return
        raise ConfigError(f"the settings are wrong: {wrong}")  # beyond the block: what was caught holds the values

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the options that are set; secrets as asterisks."""
        return ((name, getattr(self, name)) for name in sorted(self.model_fields_set))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, the first wins."""
        toml = TomlConfigSettingsSource(settings_cls)
        return init_settings, env_settings, dotenv_settings, file_secret_settings, toml

    def options(self) -> dict[str, Any]:
        """Return what is set, for ``RecoverableProducer(**...)`` or ``lifespan(**...)``; secrets are in the clear here.

        Raises:
            ConfigError: the files of TLS cannot be used.

        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        tls = {name: given.pop(name) for name in list(given) if name.startswith("ssl_")}
        if tls or self.security_protocol in ("SSL", "SASL_SSL"):
            given["ssl_context"] = self._context()
        return {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in given.items()
        }

    def _context(self) -> ssl.SSLContext:
        secret = self.ssl_password
        password = "" if secret is None else secret.get_secret_value()  # with None, OpenSSL would ask for it
        try:
            return create_ssl_context(
                cafile=self.ssl_cafile, certfile=self.ssl_certfile, keyfile=self.ssl_keyfile, password=password
            )
        except OSError as error:
            files = f"ssl_cafile={self.ssl_cafile} ssl_certfile={self.ssl_certfile} ssl_keyfile={self.ssl_keyfile}"
            raise ConfigError(f"the files of TLS cannot be used: {error} {files}") from None

    @classmethod
    def _warn_of_slips(cls) -> None:
        """Log each variable whose name is nearly a setting's: pydantic-settings passes over what it does not know."""
        prefix = cls.model_config["env_prefix"].upper()
        for variable in os.environ:
            name = variable.upper().removeprefix(prefix).lower()
            if variable.upper().startswith(prefix) and name not in cls.model_fields and (near := cls._near(name)):
                _log.warning("setting_unknown no setting has this name: did you mean %s? variable=%s", near, variable)

    @classmethod
    def _near(cls, name: str) -> str | None:
        """Return the variable of the setting that is nearly called so."""
        near = difflib.get_close_matches(name, cls.model_fields, n=1, cutoff=ALIKE)
        return cls._variable(near[0]) if near else None

    @classmethod
    def _variable(cls, name: str) -> str:
        return f"{cls.model_config['env_prefix']}{name}".upper()

    @classmethod
    def _named(cls, error: ValidationError) -> str:
        """Say which fields are wrong, and why, but not what they are."""
        named: dict[str, str] = {}
        for one in error.errors(include_input=False, include_context=False, include_url=False):
            name, reason = str(one["loc"][0]), one["msg"][0].lower() + one["msg"][1:]
            if one["type"] == "extra_forbidden":
                near = cls._near(name)
                reason = f"no setting has this name: did you mean {near}?" if near else "no setting has this name"
            named[name] = reason
        return "; ".join(f"{name} ({cls._variable(name)}): {reason}" for name, reason in named.items())
