"""Each benchmark of a short run has a picture, drawn from its JSON alone."""

import json
from pathlib import Path
from struct import unpack
from typing import Any

from benchmarks import acknowledgement, partitions, plots, throughput
from benchmarks.__main__ import GROUPS
from benchmarks.figures import histogram, quantiles

TIMES = [700, 900, 1_100, 5_000, 2_000_000]
MOST_BYTES = 60_000  # they are kept beside the source
PNG = b"\x89PNG\r\n\x1a\n"


def round_of(figure: float) -> dict[str, Any]:
    """Return what the child of any benchmark gives back, and more."""
    late = quantiles([time * 1000 for time in TIMES])
    return {
        "delivered_s": 1e5 * figure,
        "cpu_us": figure,
        **{f"{name}_histogram": histogram(TIMES) for name in ("publish", "empty", "call", "ack")},
        "ack": late,
        **{f"{kind}_{name}": value for kind in ("stall", "idle") for name, value in late.items()},
    }


def test_each_benchmark_of_a_short_run_has_a_picture(tmp_path: Path) -> None:
    rounds = [round_of(2.0), round_of(3.0)]
    results = {
        "throughput": {"rounds": dict.fromkeys(throughput.CONTENDERS, rounds)},
        "latency": {"rounds": {"without Kafka": rounds, "delivering": rounds}},
        "acknowledgement": {
            "rounds": dict.fromkeys(acknowledgement.CONTENDERS, dict.fromkeys(acknowledgement.RATES, rounds))
        },
        "partitions": {"rounds": dict.fromkeys(partitions.CONTENDERS, dict.fromkeys(partitions.NUMBERS, rounds))},
        "backlog": {"gigabytes": 0.5, "rounds": {"seen": rounds, "never seen": rounds}},
    }
    machine = dict.fromkeys(("cpu", "cores", "python", "kafka", "time", "commit"), "some")
    drawn = plots.draw(json.loads(json.dumps({"machine": machine, "results": results})), tmp_path / "new")
    assert {path.stem for path in drawn} == set(GROUPS["short"]) == set(results)
    for path in drawn:
        content = path.read_bytes()
        assert content.startswith(PNG)
        assert unpack(">I", content[16:20]) == (1600,)
        assert len(content) < MOST_BYTES
