"""The plots, from the figures of a run; matplotlib lives in an environment of the plots' own.

python -m benchmarks.plots benchmarks/results/full
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl  # type: ignore[import-not-found]  # in its own environment
from matplotlib import pyplot as plt

OURS = "aiolock"
FLOOR = "floor"

mpl.use("agg")
mpl.rcParams |= {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.figsize": (10, 5),
    "grid.alpha": 0.3,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.hashsalt": "aiolock",  # the same figures give the same file
}


def median(values: list[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def style(title: str, place: int) -> dict[str, Any]:
    """Make aiolock stand out; the others differ by colour and dashes."""
    look: dict[str, Any] = {"label": title.replace("`", "")}
    if title == OURS:
        return look | {"color": "black", "linewidth": 2.5, "zorder": 3}
    dashes = ("-", "--", ":")[place // 10]
    return look | {"color": f"C{place % 10}", "linestyle": dashes, "linewidth": 1.2}


def save(figure: Any, folder: Path, name: str) -> None:
    """With one legend beside all its plots, as SVG, and as PNG."""
    shown: dict[str, Any] = {}
    for ax in figure.axes:
        shown |= {label: line for line, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.tight_layout(rect=(0, 0, 1 - 2.3 / figure.get_figwidth(), 1))
    figure.legend(shown.values(), shown, loc="center right")
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=120)
    plt.close(figure)


def handoffs(figures: dict[str, Any], folder: Path) -> None:
    """How the hand-offs between two processes are spread."""
    figure, axes = plt.subplots(1, 2, sharey=True, figsize=(13, 5))
    drawn = (("chain", "out of a full queue"), ("quiet", "after 50 to 150 ms of quiet"))
    for ax, (sample, title) in zip(axes, drawn, strict=True):
        for place, (name, record) in enumerate(figures["contestants"].items()):
            values = sorted(record["samples"].get(sample, []))
            if values:
                shares = [(number + 1) / len(values) for number in range(len(values))]
                ax.step(values, shares, where="post", **style(name, place))
        floor = figures["contestants"].get(FLOOR, {"figures": {}})["figures"]
        for suffix, label in (("floor", "round trip in C"), ("hop", "bare pub/sub hop")):
            values = floor.get(f"chain.{suffix}.us")
            if values:
                ax.axvline(median(values), color="grey", linestyle=":")
                ax.text(median(values), 1.01, label, rotation=30, fontsize=7, color="grey")
        ax.set_xscale("log")
        ax.set_xlabel("µs from leaving in one process to entering in the other")
        ax.set_title(title, pad=32)
    axes[0].set_ylabel("share of hand-offs that took at most so long")
    save(figure, folder, "handoff")


def contention(figures: dict[str, Any], folder: Path) -> None:
    """How many come through a lock in a second, when more and more want it."""
    figure, ax = plt.subplots()
    for place, (name, record) in enumerate(figures["contestants"].items()):
        rates = {
            int(key.removeprefix("crowd").removesuffix(".handoffs")): median(values)
            for key, values in record["figures"].items()
            if key.startswith("crowd") and key.endswith(".handoffs")
        }
        points = sorted((tasks, rate) for tasks, rate in rates.items() if tasks > 1 and rate > 0)
        if points:
            ax.plot(*zip(*points, strict=True), marker="o", **style(name, place))
    ax.set_xscale("log")
    ax.set_yscale("log")
    ticks = [2, 5, 10, 20, 50, 100, 200]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_xlabel("tasks of one process that want one lock")
    ax.set_ylabel("hand-offs from task to task in a second")
    save(figure, folder, "contention")


def queues(figures: dict[str, Any], folder: Path) -> None:
    """What each move costs in longer and longer queues."""
    figure, axes = plt.subplots(1, 3, sharey=True, figsize=(14, 5))
    for ax, move in zip(axes, ("enqueue", "cancel", "grant"), strict=True):
        for place, (name, record) in enumerate(figures["contestants"].items()):
            points = sorted(
                (int(figure.removeprefix("queue").split(".")[0]), median(values))
                for figure, values in record["figures"].items()
                if figure.startswith("queue") and figure.endswith(f".{move}.us")
            )
            if name == OURS:
                points = [
                    (line["length"], median([cost["wall"] for cost in line["moves"][move]]))
                    for line in figures["aiolock"]["lines"]
                ]
            if points:
                ax.plot(*zip(*points, strict=True), marker="o", **style(name, place))
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel("waiters in the queue")
        ax.set_title(move)
    axes[0].set_ylabel("µs each")
    save(figure, folder, "queue")


def main() -> None:
    """All plots of one run."""
    folder = Path(sys.argv[1])
    figures = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    for draw in (handoffs, contention, queues):
        draw(figures, folder)


if __name__ == "__main__":
    main()
