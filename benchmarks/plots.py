"""Figures as pictures, from the JSON of a run: `python -m benchmarks.plots figures.json --plots DIRECTORY`.

Each benchmark that the JSON holds and that has a picture gets a PNG of its name, to be read at 800 pixels or more.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from benchmarks.figures import BINS, Spread, spread

WIDTH, HEIGHT, DPI = 10.0, 4.6, 160  # inches, and pixels for each: 1,600 pixels, of which a page shows half as many
PALETTE = 64  # colours of a picture
COLOURS = {
    "aiorecover publish": "#0b6e4f",
    "aiokafka send": "#c8553d",
    "confluent-kafka produce": "#3d6cb9",
    "confluent-kafka AIOProducer": "#8fb8ed",
}
OTHERS = ("#0b6e4f", "#62b58f", "#e0a030", "#8d6a9f", "#9a9a9a")
Rounds = list[dict[str, Any]]
Results = Mapping[str, Any]


def draw(content: Mapping[str, Any], directory: Path) -> list[Path]:
    """Write a picture of each benchmark in ``content``, the JSON of a run; return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, picture in PICTURES.items():
        if found := content["results"].get(name):
            with mpl.rc_context():
                _style()
                figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
                picture(figure, found)
                _sign(figure, content["machine"])
                drawn.append(directory / f"{name}.png")
                _save(figure, drawn[-1])
    return drawn


def _save(figure: Figure, path: Path) -> None:
    """Write a PNG with a palette: a third of the size, and the eye sees no difference."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=DPI)
    pixels = Image.open(drawn).convert("RGB")
    pixels.quantize(PALETTE, dither=Image.Dither.NONE).save(path, optimize=True)


def _style() -> None:
    mpl.rc("font", size=11)
    mpl.rc("axes", grid=True, axisbelow=True, titlesize=12, titleweight="bold", titlelocation="left")
    mpl.rc("axes.spines", top=False, right=False)
    mpl.rc("grid", color="#e4e4e4")
    mpl.rc("legend", frameon=False, fontsize=9)


def _sign(figure: Figure, machine: Mapping[str, Any]) -> None:
    told = f"{machine['cpu']}, {machine['cores']} core(s), {machine['python']}; {machine['kafka']}"
    told += f"\n{machine['time'][:10]}, commit {machine['commit']}"
    figure.supxlabel(told, fontsize=8, color="#777777", x=0.99, ha="right")


def _throughput(figure: Figure, found: Results) -> None:
    rate, cost = figure.subplots(1, 2)
    _bars(rate, {name: spread(of, "delivered_s", 1e-3) for name, of in found["rounds"].items()}, ",.0f")
    rate.set(title="Delivered records, thousands a second", xlabel="more is better")
    _bars(cost, {name: spread(of, "cpu_us") for name, of in found["rounds"].items()}, ".1f")
    cost.set(title="Processor time a record, µs", xlabel="less is better", yticklabels=[])


def _bars(axes: Axes, of: Mapping[str, Spread], form: str, colours: Sequence[str] = ()) -> None:
    """Draw medians, with a line from the least to the greatest, and the median's figure."""
    names = list(of)
    for number, (name, found) in enumerate(of.items()):
        colour = COLOURS.get(name) or colours[number]
        axes.barh(number, found.median, color=colour, height=0.62)
        axes.plot([min(found.values), max(found.values)], [number, number], color="#333333", linewidth=1.4)
        axes.annotate(
            f" {found.median:{form}}",
            (max(found.values), number),
            va="center",
            xytext=(3, 0),
            textcoords="offset points",
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.16)
    axes.set_xlim(left=0)


def _latency(figure: Figure, found: Results) -> None:
    axes = figure.subplots()
    measured: Mapping[str, Rounds] = found["rounds"]
    for colour, (name, rounds) in zip(OTHERS, measured.items(), strict=False):
        _steps(axes, _summed(rounds, "publish_histogram"), name, colour)
    empty = _summed([one for rounds in measured.values() for one in rounds], "empty_histogram")
    _steps(axes, empty, "an empty coroutine beside each", OTHERS[-1])
    axes.set(title="How long await publish takes", ylabel="% of the calls in a bin")
    _times(axes, (100, 1e6))
    axes.legend()


def _acknowledgement(figure: Figure, found: Results) -> None:
    acks, calls = figure.subplots(1, 2, width_ratios=[1.1, 1])
    rounds: dict[str, dict[str, Rounds]] = found["rounds"]
    rates = list(next(iter(rounds.values())))
    for number, (name, of_rates) in enumerate(rounds.items()):
        shift = (number - (len(rounds) - 1) / 2) * 0.16
        for place, rate in enumerate(rates):
            middle, far = (spread([one["ack"] for one in of_rates[rate]], key, 1e-6).median for key in ("p50", "p99"))
            label = name if not place else None
            acks.plot([place + shift] * 2, [middle, far], color=COLOURS[name], linewidth=5, alpha=0.45)
            acks.plot(place + shift, middle, "o", color=COLOURS[name], markersize=7, label=label)
            acks.plot(place + shift, far, "_", color=COLOURS[name], markersize=10, markeredgewidth=2)
    for name, of_rates in reversed(rounds.items()):
        _steps(calls, _summed(of_rates[rates[-1]], "call_histogram"), name, COLOURS[name])
    acks.set_yscale("log")
    acks.yaxis.set_major_formatter("{x:g}")
    acks.set_xticks(range(len(rates)), [f"{int(rate):,}/s" for rate in rates])
    acks.set(title="Until a record is known to be in Kafka, ms\n(dot: p50, bar: to p99)", xlabel="records published")
    acks.legend()
    calls.set(title=f"The call alone, at {int(rates[-1]):,}/s", ylabel="% of the calls in a bin")
    _times(calls, (500, 1e5))


def _summed(rounds: Rounds, name: str) -> dict[int, int]:
    total: dict[int, int] = {}
    for one in rounds:
        for number, count in one[name]:
            total[number] = total.get(number, 0) + count
    return total


def _steps(axes: Axes, counts: Mapping[int, int], name: str, colour: str) -> None:
    """Draw a histogram; each bin is a step of a twentieth of a power of ten."""
    bins, number = range(min(counts) - 1, max(counts) + 2), sum(counts.values())
    edges = [10 ** (edge / BINS) for edge in (*bins, bins.stop)]
    shares = [100 * counts.get(edge, 0) / number for edge in bins]
    axes.stairs(shares, edges, color=colour, linewidth=1.8, label=name)
    axes.stairs(shares, edges, color=colour, fill=True, alpha=0.12)


def _times(axes: Axes, limits: tuple[float, float]) -> None:
    axes.set_xscale("log")
    axes.set_xticks([1e2, 1e3, 1e4, 1e5, 1e6], ["100 ns", "1 µs", "10 µs", "100 µs", "1 ms"])
    axes.set(xlim=limits, ylim=(0, None))


def _partitions(figure: Figure, found: Results) -> None:
    both: Sequence[Axes] = figure.subplots(1, 2)
    for name, of_numbers in found["rounds"].items():
        numbers = [int(number) for number in of_numbers]
        for axes, key, scale in zip(both, ("delivered_s", "cpu_us"), (1e-3, 1.0), strict=True):
            of = [spread(rounds, key, scale) for rounds in of_numbers.values()]
            axes.plot(numbers, [one.median for one in of], "o-", color=COLOURS[name], linewidth=2, label=name)
            least, most = [min(one.values) for one in of], [max(one.values) for one in of]
            axes.vlines(numbers, least, most, color=COLOURS[name], linewidth=5, alpha=0.35)
            axes.set(xscale="log", xlabel="partitions")
            axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
            axes.minorticks_off()
    both[0].set(title="Delivered records, thousands a second", ylim=(0, None))
    both[1].set(title="Processor time a record, µs", ylim=(0, None))
    both[0].legend(loc="lower left")


def _backlog(figure: Figure, found: Results) -> None:
    rate, late = figure.subplots(1, 2)
    measured: Mapping[str, Rounds] = found["rounds"]
    _bars(rate, {name: spread(rounds, "delivered_s", 1e-3) for name, rounds in measured.items()}, ",.0f", OTHERS)
    rate.set(title=f"A backlog of {found['gigabytes']:g} GB replayed,\nthousands of records a second")
    names = ("p50", "p99", "p99.9", "max")
    for colour, (name, rounds) in zip(OTHERS, measured.items(), strict=False):
        late.plot(names, [spread(rounds, f"stall_{one}", 1e-6).median for one in names], "o-", color=colour, label=name)
    idle = [one for rounds in measured.values() for one in rounds]
    late.plot(names, [spread(idle, f"idle_{one}", 1e-6).median for one in names], "o--", color=OTHERS[-1], label="idle")
    late.set_yscale("log")
    late.yaxis.set_major_formatter("{x:g}")
    late.set(title="Event loop late meanwhile, ms")
    late.legend()


PICTURES: dict[str, Callable[[Figure, Results], None]] = {
    "throughput": _throughput,
    "latency": _latency,
    "acknowledgement": _acknowledgement,
    "partitions": _partitions,
    "backlog": _backlog,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description="Draw what a run measured.")
    parser.add_argument("json", type=Path, help="what `python -m benchmarks --json` wrote")
    parser.add_argument("--plots", type=Path, required=True, metavar="DIRECTORY", help="where the PNG files go")
    options = parser.parse_args()
    for path in draw(json.loads(options.json.read_text()), options.plots):
        print(path)


if __name__ == "__main__":
    main()
