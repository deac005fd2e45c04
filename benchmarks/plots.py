"""The plots, from the figures of a run; matplotlib is in an environment of its own.

    python -m benchmarks.plots benchmarks/results/full

The plots are shown on light and dark pages, and on phones. So they have no background, colours of
middle lightness that colour-blind readers can tell apart, large type, and a label at each line.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.labels import spread_out

mpl: Any = importlib.import_module("matplotlib")  # without types where this is checked
ticker: Any = importlib.import_module("matplotlib.ticker")
plt: Any = importlib.import_module("matplotlib.pyplot")

OURS = "aiolock"
REDIS_PY = "redis-py `Lock`"
FLOOR = "floor"

ACCENT = "#d55e00"
COLOURS = (ACCENT, "#0c7bc0", "#00936b", "#b5648d", "#a87400", "#7a6fd0", "#767676")
"""Darker than Okabe's and Ito's, so that they show on white, too."""
MARKERS = "osD^vPX"
GREY = "#767676"
WIDTH = 6.0
"""Inches of each plot: as wide as a phone, with type that can be read there."""
LABELLED = 0.7
"""The right end of the axes, as a share of the width: the labels are right of it."""
SMALL = 11

mpl.use("agg")
mpl.rcParams |= {
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.labelcolor": GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": GREY,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "font.size": 12,
    "grid.alpha": 0.25,
    "grid.color": GREY,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "savefig.transparent": True,
    "svg.hashsalt": "aiolock",  # the same figures give the same file
    "text.color": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
}

Figures = dict[str, Any]
Record = dict[str, Any]
Curves = dict[str, list[tuple[int, float]]]
Looks = dict[str, tuple[str, str]]
"""The colour and the marker of each contestant, the same in all plots."""


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two in the middle."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def figure(record: Record, name: str) -> float:
    """The median of a figure; 0 if it was not measured."""
    values: list[float] = record["figures"].get(name, [])
    return median(values) if values else 0.0


def locks(figures: Figures) -> dict[str, Record]:
    """The contestants that are locks, on asyncio's own loop, by their titles."""
    return {
        title: record
        for title, record in figures["contestants"].items()
        if title != FLOOR and record.get("loop", "asyncio") == "asyncio"
    }


def shown(figures: Figures) -> Looks:
    """As many contestants as colours: aiolock, redis-py's lock, and the fastest in a crowd."""
    rates = {title: figure(record, "crowd200.handoffs") for title, record in locks(figures).items()}

    def rank(title: str) -> tuple[bool, bool, float]:
        return title != OURS, title != REDIS_PY, -rates[title]

    chosen = sorted((title for title, rate in rates.items() if rate), key=rank)
    return dict(zip(chosen, zip(COLOURS, MARKERS, strict=True), strict=False))


def plain(title: str) -> str:
    """A title without the marks of Markdown."""
    return title.replace("`", "")


def save(drawn: Any, folder: Path, name: str) -> None:
    """Save a plot as SVG and as PNG."""
    drawn.savefig(folder / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
    drawn.savefig(folder / f"{name}.png", dpi=150, bbox_inches="tight")
    plt.close(drawn)


def lines(ax: Any, drawn: Curves, looks: Looks) -> None:
    """A line for each contestant; both axes are logarithmic."""
    ax.set_xscale("log")
    ax.set_yscale("log")
    for title, points in drawn.items():
        colour, marker = looks[title]
        wide = {"linewidth": 3.5, "zorder": 3} if title == OURS else {}
        ax.plot(*zip(*points, strict=True), color=colour, marker=marker, **wide)
    ticks = sorted({across for points in drawn.values() for across, _ in points})
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 3)))
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.minorticks_off()


def label_ends(ax: Any, drawn: Curves, looks: Looks) -> None:
    """Write the names right of the ends of their lines; after the layout, to keep a distance."""
    ax.autoscale_view()
    to_points = 72 / ax.figure.dpi
    ends = [points[-1] for points in drawn.values()]
    heights = [float(ax.transData.transform(end)[1]) * to_points for end in ends]
    places = spread_out(heights, 1.25 * SMALL)
    for title, end, place, height in zip(drawn, ends, places, heights, strict=True):
        ax.annotate(
            plain(title),
            end,
            xytext=(9, place - height),
            textcoords="offset points",
            va="center",
            color=looks[title][0],
            fontsize=SMALL,
            fontweight="bold" if title == OURS else "normal",
            annotation_clip=False,
        )


def lead(figures: Figures, folder: Path) -> None:
    """How often a lock goes from one task to the next: for readers new to aiolock."""
    everybody = locks(figures)
    fair = [
        title
        for title, record in everybody.items()
        if title not in {OURS, REDIS_PY} and figure(record, "crowd200.overtaken") < 0.05
    ]
    rates = {title: figure(record, "crowd200.handoffs") for title, record in everybody.items()}
    fastest = max(fair, key=rates.__getitem__, default=REDIS_PY)
    drawn, ax = plt.subplots(figsize=(WIDTH, 3.6))
    titles = [title for title in dict.fromkeys((OURS, fastest, REDIS_PY)) if title in everybody]
    for place, title in enumerate(titles):
        rate = rates[title]
        colour = ACCENT if title == OURS else GREY
        ax.barh(-place, rate, height=0.42, color=colour)
        ax.annotate(
            f"{rate:,.0f}",
            (rate, -place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=16,
            fontweight="bold",
        )
        ax.annotate(
            f"{plain(title)}: {in_words(everybody[title])}",
            (0, -place + 0.25),
            xytext=(0, 2),
            textcoords="offset points",
            va="bottom",
            color=colour,
            fontweight="bold" if title == OURS else "normal",
        )
    ax.set_title("200 tasks want one lock: how often does it\ngo from one to the next in a second?")
    ax.set_axis_off()
    ax.margins(x=0.16)
    ax.set_ylim(-len(titles) + 0.7, 0.6)
    save(drawn, folder, "lead")


def in_words(record: Record) -> str:
    """The number of waiters that are served, and over how many connections."""
    share = 100 * figure(record, "crowd200.overtaken")
    turn = "each in its turn" if share < 1 else f"{share:.0f} % of the waits overtaken"
    return f"{turn}, {figure(record, 'crowd200.connections'):.0f} connections"


def handoffs(figures: Figures, folder: Path) -> None:
    """The spread of the hand-offs between two processes: a row for each contestant."""
    scenarios = (("chain", "out of a full queue"), ("quiet", "after 50 to 150 ms of quiet"))
    everybody = locks(figures)
    drawn, axes = plt.subplots(2, 1, sharex=True, figsize=(WIDTH, 9))
    for ax, (sample, title) in zip(axes, scenarios, strict=True):
        samples = {
            name: sorted(record["samples"][sample])
            for name, record in everybody.items()
            if record["samples"].get(sample)
        }
        rows = sorted(samples, key=lambda name: -median(samples[name]))
        for place, name in enumerate(rows):
            values = samples[name]
            colour = ACCENT if name == OURS else COLOURS[1]
            last = len(values) - 1
            ax.plot([values[0], values[last]], [place] * 2, color=colour, linewidth=1, alpha=0.6)
            ax.plot([values[last // 4], values[3 * last // 4]], [place] * 2, color=colour, lw=6)
            ax.plot(median(values), place, marker="o", color=colour, markersize=9)
        ax.set_yticks(range(len(rows)), [plain(name) for name in rows])
        for label, name in zip(ax.get_yticklabels(), rows, strict=True):
            label.set_color(ACCENT if name == OURS else GREY)
        ax.grid(visible=False, axis="y")
        ax.set_title(title, pad=24)
        floor = figures["contestants"].get(FLOOR, {"figures": {}})
        hop = figure(floor, "chain.hop.us")
        if hop:
            ax.axvline(hop, color=GREY, linestyle=":")
            ax.annotate(
                "a bare hop",
                (hop, 1.01),
                xycoords=("data", "axes fraction"),
                fontsize=SMALL,
            )
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.tick_params(labelbottom=True)
    axes[-1].set_xlabel(
        "µs from leaving in one process to entering\nin the other: median, quartiles, all"
    )
    drawn.tight_layout()
    save(drawn, folder, "handoff")


def contention(figures: Figures, folder: Path) -> None:
    """How many tasks enter a lock in a second, with more and more tasks that want it."""
    looks = shown(figures)
    curves: Curves = {}
    for title in looks:
        rates = {
            int(name.removeprefix("crowd").removesuffix(".handoffs")): median(values)
            for name, values in figures["contestants"][title]["figures"].items()
            if name.startswith("crowd") and name.endswith(".handoffs")
        }
        points = sorted((tasks, rate) for tasks, rate in rates.items() if tasks > 1 and rate > 0)
        if points:
            curves[title] = points
    drawn, ax = plt.subplots(figsize=(WIDTH, 4.5))
    drawn.subplots_adjust(left=0.12, right=LABELLED, bottom=0.14)
    lines(ax, curves, looks)
    ax.set_xlabel("tasks of one process that want one lock")
    ax.set_title("hand-offs from task to task in a second")
    label_ends(ax, curves, looks)
    save(drawn, folder, "contention")


def queues(figures: Figures, folder: Path) -> None:
    """The cost of each move in longer and longer queues."""
    looks = shown(figures)
    drawn, axes = plt.subplots(3, 1, sharex=True, figsize=(WIDTH, 10))
    drawn.subplots_adjust(left=0.12, right=LABELLED + 0.1, bottom=0.07, top=0.95, hspace=0.35)
    for ax, move in zip(axes, ("enqueue", "cancel", "grant"), strict=True):
        curves: Curves = {}
        for title in looks:
            points = sorted(
                (int(name.removeprefix("queue").split(".")[0]), median(values))
                for name, values in figures["contestants"][title]["figures"].items()
                if name.startswith("queue") and name.endswith(f".{move}.us")
            )
            if title == OURS:
                points = [
                    (line["length"], median([cost["wall"] for cost in line["moves"][move]]))
                    for line in figures["aiolock"]["asyncio"]["lines"]
                ]
            if points:
                curves[title] = points
        lines(ax, curves, looks)
        label_ends(ax, curves, looks)
        ax.set_title(f"{move}: µs each")
        ax.tick_params(labelbottom=True)
    axes[-1].set_xlabel("waiters in the queue")
    save(drawn, folder, "queue")


def outage(figures: Figures, folder: Path) -> None:
    """The entries in each tenth of a second, while one of three servers is stopped."""
    subjects = {
        title: record["timelines"]["stopped"]
        for title, record in figures["subjects"].items()
        if "3 servers" in title and record["timelines"].get("stopped")
    }
    drawn, axes = plt.subplots(len(subjects), 1, sharex=True, figsize=(WIDTH, 1.3 * len(subjects)))
    for ax, (title, times) in zip(axes, subjects.items(), strict=True):
        third = round(max(max(each) for each in subjects.values())) / 3
        count = round(30 * third)
        rates = [10 * sum(step <= 10 * at < step + 1 for at in times) for step in range(count)]
        ours = title.startswith(OURS)
        colour = ACCENT if ours else COLOURS[1]
        ax.axvspan(third, 2 * third, color=GREY, alpha=0.15, linewidth=0)
        ax.fill_between([step / 10 for step in range(count)], rates, step="post", color=colour)
        ax.set_title(title.replace(", 3 servers", ""), color=colour, fontsize=SMALL)
        ax.set_ylim(bottom=0)
        ax.yaxis.set_major_locator(ticker.MaxNLocator(2))
        ax.yaxis.set_major_formatter("{x:,.0f}")
    axes[0].annotate(
        "one of three servers\nis stopped",
        (0.5, 1.25),
        xycoords="axes fraction",
        ha="center",
        fontsize=SMALL,
    )
    axes[-1].set_xlabel("seconds; entries a second of 20 tasks that want one lock")
    drawn.tight_layout()
    save(drawn, folder, "quorum-outage")


DRAWN: Sequence[Callable[[Figures, Path], None]] = (lead, handoffs, contention, queues)


def main() -> None:
    """All plots of one run."""
    folder = Path(sys.argv[1])
    if (folder / "quorum.json").exists():  # of `benchmarks/quorum.py`
        outage(json.loads((folder / "quorum.json").read_text(encoding="utf-8")), folder)
        return
    figures = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    for draw in DRAWN:
        draw(figures, folder)


if __name__ == "__main__":
    main()
