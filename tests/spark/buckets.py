"""A bucket in the place of the local disk, for a proof: where the environment names one, landings store there.

The server is moto's, on this machine. What a test would put into a directory stands under the same path in the bucket.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.jars import s3_jars

__all__ = ["BUCKET", "bucket", "bucket_settings", "numbered", "stored"]

BUCKET = "AIORECOVER_TESTS_BUCKET"  # <endpoint> <name>
_KEY, _SECRET, _REGION = "tests", "tests-secret", "us-east-1"  # moto asks for some, and takes any


def stored(directory: Path) -> str:
    """Where a landing stores what a test would put into the directory: there, or in the bucket."""
    named = _named()
    return str(directory) if named is None else f"s3a://{named[1]}{directory}"


def bucket_settings(directory: Path) -> Mapping[str, str]:
    """Spark's settings for the bucket; none where there is none."""
    named = _named()
    if named is None:
        return {}
    return {
        "spark.jars": ",".join(map(str, sorted(s3_jars().glob("*.jar")))),
        "spark.hadoop.fs.s3a.endpoint": named[0],
        "spark.hadoop.fs.s3a.endpoint.region": _REGION,
        "spark.hadoop.fs.s3a.access.key": _KEY,
        "spark.hadoop.fs.s3a.secret.key": _SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        # A catalogue of Hadoop's type renames files, which S3 does not do in one step.
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:derby:{directory / 'catalogue'};create=true",
    }


def numbered(directory: Path) -> dict[int, float]:
    """The files there, or under its path in the bucket, that have numbers for names, and when they were written."""
    named = _named()
    if named is None:
        return {int(file.name): file.stat().st_mtime for file in directory.glob("[0-9]*") if file.name.isdigit()}
    prefix = f"{directory}/".lstrip("/")
    pages = _client(named[0]).get_paginator("list_objects_v2").paginate(Bucket=named[1], Prefix=prefix)
    found = {one["Key"].removeprefix(prefix): one for page in pages for one in page.get("Contents", ())}
    return {int(name): one["LastModified"].timestamp() for name, one in found.items() if name.isdigit()}


@contextmanager
def bucket() -> Iterator[None]:
    """Start a server with a bucket, for this process and those that it starts."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - of a dependency group of its own

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
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


def _named() -> tuple[str, str] | None:
    endpoint, _, name = os.environ.get(BUCKET, "").partition(" ")
    return (endpoint, name) if name else None


def _client(endpoint: str) -> Any:
    import boto3  # noqa: PLC0415 - as moto

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=_REGION,
        aws_access_key_id=_KEY,
        aws_secret_access_key=_SECRET,
    )
