"""A bucket instead of the local disk: landings store there if an environment variable names one.

The bucket is in moto's server on this machine; a test's directory is a path of the same name in it.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.jars import s3_jars

__all__ = ["BUCKET", "bucket", "bucket_settings", "numbered_files", "storage_path"]

BUCKET = "AIORECOVER_TESTS_BUCKET"  # <endpoint> <name>
_KEY, _SECRET, _REGION = "tests", "tests-secret", "us-east-1"  # moto demands credentials, and takes any


def storage_path(directory: Path) -> str:
    """Return where a landing stores this directory: on the disk, or in the bucket."""
    chosen = _chosen_bucket()
    return str(directory) if chosen is None else f"s3a://{chosen[1]}{directory}"


def bucket_settings(directory: Path) -> Mapping[str, str]:
    """Return Spark's settings for the bucket; an empty mapping without one."""
    chosen = _chosen_bucket()
    if chosen is None:
        return {}
    return {
        "spark.jars": ",".join(map(str, sorted(s3_jars().glob("*.jar")))),
        "spark.hadoop.fs.s3a.endpoint": chosen[0],
        "spark.hadoop.fs.s3a.endpoint.region": _REGION,
        "spark.hadoop.fs.s3a.access.key": _KEY,
        "spark.hadoop.fs.s3a.secret.key": _SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        # A catalogue of type hadoop renames files, which S3 does not do in one step.
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:derby:{directory / 'catalogue'};create=true",
    }


def numbered_files(directory: Path) -> dict[int, float]:
    """Return when each file whose name is a number was written, in seconds since 1970."""
    chosen = _chosen_bucket()
    if chosen is None:
        return {int(file.name): file.stat().st_mtime for file in directory.glob("[0-9]*") if file.name.isdigit()}
    prefix = f"{directory}/".lstrip("/")
    pages = _client(chosen[0]).get_paginator("list_objects_v2").paginate(Bucket=chosen[1], Prefix=prefix)
    objects = {one["Key"].removeprefix(prefix): one for page in pages for one in page.get("Contents", ())}
    return {int(name): one["LastModified"].timestamp() for name, one in objects.items() if name.isdigit()}


@contextmanager
def bucket() -> Iterator[None]:
    """Run a server with a bucket, for this process and its children."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - a dependency group of its own brings it

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else it logs a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint, name = f"http://{host}:{port}", "lake"
    _client(endpoint).create_bucket(Bucket=name)
    os.environ[BUCKET] = f"{endpoint} {name}"
    try:
        yield
    finally:
        del os.environ[BUCKET]
        server.stop()


def _chosen_bucket() -> tuple[str, str] | None:
    endpoint, _, name = os.environ.get(BUCKET, "").partition(" ")
    return (endpoint, name) if name else None


def _client(endpoint: str) -> Any:
    import boto3  # noqa: PLC0415 - moto's group brings it

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=_REGION,
        aws_access_key_id=_KEY,
        aws_secret_access_key=_SECRET,
    )
