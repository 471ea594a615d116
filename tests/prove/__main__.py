"""`python -m tests.prove NAME --seed S --count N …`: one of the long proofs; without a name, what there is.

Each proof is a module of this package with `main(arguments)`, whose result is the exit status: 0 proved, 1 a promise
was broken or too little happened to prove it, 2 it cannot run here (and says why).
"""

import importlib
import sys

PROOFS = {
    "model": "a million steps of the ring on a memory disk: killed, cut off from power, with failed flushes",
    "cycles": "the second core: kill -9, also beside dying and frozen brokers, and in transactions",
    "kills": "kill -9 of the publishing process, every record looked for in a real Kafka",
    "identity": "kill -9 while three brokers are frozen, killed and rolled: nothing twice, nothing out of order",
    "destinations": "a topic of the backlog deleted, the cluster another one, kill -9 of who finds out: nothing lost",
    "transactions": "exactly_once, kill -9 in each step of a transaction, while brokers fail: each record once",
    "outages": "all brokers gone for ten minutes under load: memory flat, resumed at once, nothing lost",
    "full_disk": "the disk filled in an outage of all brokers, freed, filled again: nothing accepted is lost",
    "stalled": "partitions of 51 without a leader, below min ISR or on a frozen broker for minutes: the others flow",
    "day": "a day of traffic and outages, each hour some seconds long: memory and file end as they began",
    "workers": "20 workers started, killed, scaled down to 2 over one wal_dir: nothing lost, nothing delivered twice",
    "etl": "workers from topic to topic, killed 200 times while they move records: each exactly once",
    "landing": "two million records, some twice in Kafka, landed while drivers are killed: each once in the table",
    "sink": "rows through Spark's sink while executors are killed: each counts once, and is landed once",
    "pipeline": "workers, brokers and Spark drivers killed between publish and the table: nothing is missing there",
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
