"""Amazon MSK with IAM: ``pip install aws-msk-iam-sasl-signer-python``; port 9098 of the brokers.

A token is signed here, with the credentials that boto3 finds (role, variables, profile), for 15 minutes. The role needs
``kafka-cluster:Connect``, ``DescribeTopic``, ``WriteData`` and ``WriteDataIdempotently``; ``ReadData`` for the recovery
check.
"""

import asyncio
import os
import ssl

from aiokafka.abc import AbstractTokenProvider
from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

from aiorecover import RecoverableProducer


class MskTokens(AbstractTokenProvider):
    """Signs in a thread: boto3 may have to ask for credentials first."""

    def __init__(self, region: str) -> None:
        self._region = region

    async def token(self) -> str:
        token, _ = await asyncio.to_thread(MSKAuthTokenProvider.generate_auth_token, self._region)
        return str(token)


async def main() -> None:
    protocol = os.environ.get("SECURITY_PROTOCOL", "SASL_SSL")
    async with RecoverableProducer(
        os.environ.get("WAL_DIR", "wal"),
        bootstrap_servers=os.environ.get("KAFKA", "localhost:9098"),
        security_protocol=protocol,  # type: ignore[arg-type]  # the producer checks it
        ssl_context=ssl.create_default_context() if protocol == "SASL_SSL" else None,
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=MskTokens(os.environ.get("AWS_REGION", "eu-west-1")),
    ) as producer:
        receipt = await producer.publish(os.environ.get("TOPIC", "orders"), {"id": 1, "item": "tea"}, key="1")
        report = await receipt.delivered(timeout_ms=10_000)
        print("in Kafka", report.partition, report.offset)


if __name__ == "__main__":
    asyncio.run(main())
