"""`python -m tests.prove NAME --seed S --count N …`: one of the long proofs; without a name, what there is.

Each proof is a module of this package with `main(arguments)`, whose result is the exit status: 0 proved, 1 a promise
was broken or too little happened to prove it, 2 it cannot run here (and says why).
"""

import importlib
import sys

PROOFS = {
    "cycles": "kill -9 of the publishing process, each record looked for in Kafka; --harm, --power, --guarantee",
    "model": "a million steps of the ring on a memory disk: killed, cut off from power, with failed flushes",
    "outages": "all brokers gone for ten minutes under load: memory flat, resumed at once, nothing lost",
    "etl": "workers from topic to topic, killed 200 times while they move records: each exactly once",
    "landing": "two million records, some twice in Kafka, landed while drivers are killed: each once in the table",
    "s3": "the same in Delta and Iceberg on S3, with Spark's checkpoint there, too",
    "spark35": "the tests of landing and audits on Spark 3.5, in an environment of its own; arguments are pytest's",
    "pipeline": "producers, brokers and Spark drivers killed between publish and the table: nothing is missing there",
    "sanitize": "the writer in C with the address and undefined-behaviour sanitizers, under its tests",
    "audit": "40 million rows with a thousand faults of each kind at known places: found, and at what cost",
}


def main() -> int:
    """Run the proof that the first argument names."""
    names = sys.argv[1:2]
    if not names or names[0] not in PROOFS:
        print("python -m tests.prove NAME [--seed S] [--count N] …", file=sys.stderr)
        for name, what in PROOFS.items():
            print(f"  {name:13}{what}", file=sys.stderr)
        return 2
    status: int = importlib.import_module(f"tests.prove.{names[0]}").main(sys.argv[2:])
    return status


if __name__ == "__main__":
    sys.exit(main())
