"""The plots in `docs/images`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import MillstreamError
from .operators import MAIN, Results, operator_names
from .profile import KINDS

if TYPE_CHECKING:
    from ..tuning import BufferCurve
    from .source import Overhead
    from .static_join import Compared
    from .tuning_results import Results as TuningResults

_OURS, _THEIRS = "#1b6ca8", "#c8553d"
_EXPONENTS = {"uniform": 0.0, "Zipf 0.5": 0.5, "Zipf 1": 1.0, "Zipf 1.5": 1.5}


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as problem:
        raise MillstreamError("plots need matplotlib: pip install millstream[plot]") from problem
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    _pyplot().close(figure)
    return file


def batch_time(results: Sequence[Compared], file: Path) -> Path:
    """Time per micro-batch over the size of R, ours and Spark's own."""
    figure, axes = _pyplot().subplots(figsize=(7.2, 4.2))
    for how, style in (("left", "-"), ("inner", "--")):
        rows = sorted((one for one in results if one.how == how), key=lambda one: one.rows)
        sizes = [one.rows / 1e6 for one in rows]
        for label, colour, times in (
            ("Spark's own join", _THEIRS, [one.median_theirs for one in rows]),
            ("ms.join", _OURS, [one.median_ours for one in rows]),
        ):
            axes.plot(sizes, times, style, color=colour, marker="o", markersize=4, label=f"{label}, {how}")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="rows of the master, millions",
        ylabel="seconds per micro-batch of 20,000 rows",
        title="Time per micro-batch over the size of the master",
    )
    ticks = sorted({one.rows / 1e6 for one in results})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(_pyplot().NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(lambda x, _: f"{x:g}" if f"{x:e}"[0] in "25" else "")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    return _save(figure, file)


def operators(results: Results, file: Path) -> Path:
    """Service rate over the skew of the stream, for each operator and budget."""
    pyplot = _pyplot()
    budgets = sorted({key[2] for key in results}, reverse=True)
    figure, panels = pyplot.subplots(1, len(budgets), figsize=(4.8 * len(budgets), 4.2), sharey=True, squeeze=False)
    for axes, budget in zip(panels[0], budgets, strict=True):
        for name in operator_names(results):
            points = [
                (exponent, results[name, workload, budget].rate)
                for workload, exponent in _EXPONENTS.items()
                if (name, workload, budget) in results
            ]
            if points:
                style = {"linewidth": 2.4} if name == "auto" else {"linewidth": 1.2}
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name, **style)
        axes.set(yscale="log", xlabel="exponent of Zipf's law", title=f"budget {budget:.0%} of R")
        axes.grid(visible=True, which="major", alpha=0.3)
    panels[0][0].set_ylabel("tuples per second, one core")
    panels[0][0].legend(frameon=False, fontsize=8)
    return _save(figure, file)


def where_the_time_goes(results: Results, file: Path) -> Path:
    """Shares of the time by kind of work, for each operator."""
    names = [name for name in operator_names(results) if (name, MAIN, 0.1) in results]
    names = [name for name in names if results[name, MAIN, 0.1].profile]
    figure, axes = _pyplot().subplots(figsize=(7.2, 0.5 * len(names) + 1.4))
    left = [0.0] * len(names)
    for kind in KINDS:
        shares = [100 * results[name, MAIN, 0.1].profile[kind] for name in names]
        axes.barh(names, shares, left=left, label=kind)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.set(xlabel="% of the time, Zipf 1, 10 % of R", xlim=(0, 100))
    axes.legend(frameon=False, fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _save(figure, file)


def cost_models(results: TuningResults, file: Path) -> Path:
    """Predicted and measured rate over the disk buffer, a panel for each algorithm."""
    names = list(dict.fromkeys(one.algorithm for one in results.over_buffers))
    figure, panels = _pyplot().subplots(1, len(names), figsize=(2.9 * len(names), 3.2), sharex=True, squeeze=False)
    for axes, name in zip(panels[0], names, strict=True):
        points = sorted(results.of(name), key=lambda one: one.disk_buffer)
        sizes = [one.disk_buffer / 1e6 for one in points]
        axes.plot(sizes, [one.predicted / 1e3 for one in points], "-", color=_THEIRS, label="predicted")
        axes.plot(sizes, [one.measured / 1e3 for one in points], "o", color=_OURS, label="measured", markersize=4)
        axes.set(xscale="log", title=name, xlabel="disk buffer, MB")
        _plain_ticks(axes, sizes)
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, which="major", alpha=0.3)
    panels[0][0].set_ylabel("1000 tuples per second")
    panels[0][0].legend(frameon=False, fontsize=8)
    return _save(figure, file)


def _plain_ticks(axes: Any, places: Sequence[float]) -> None:
    """Ticks of a logarithmic axis where something was measured, as plain numbers."""
    axes.set_xticks(places, [f"{float(f'{place:.2g}'):g}" for place in places])
    axes.xaxis.set_minor_locator(_pyplot().NullLocator())


def default_buffer(results: TuningResults, file: Path) -> Path:
    """Measured rate at the default and at the optimum disk buffer over the memory."""
    figure, axes = _pyplot().subplots(figsize=(5.4, 3.6))
    memory = [pair.default.memory / 1e6 for pair in results.defaults]
    axes.plot(memory, [pair.best_rate / 1e3 for pair in results.defaults], "o-", color=_OURS, label="optimum")
    rates = [pair.default_rate / 1e3 for pair in results.defaults]
    axes.plot(memory, rates, "s--", color=_THEIRS, label="default", markersize=4)
    axes.set(xscale="log", xlabel="memory, MB", ylabel="1000 tuples per second, meshjoin")
    _plain_ticks(axes, memory)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False)
    return _save(figure, file)


def buffer_curves(curves: Sequence[BufferCurve], file: Path) -> Path:
    """Predicted rate over the size of the disk buffer, with default and optimum marked."""
    figure, axes = _pyplot().subplots(figsize=(8.4, 4.6))
    for curve in curves:
        (line,) = axes.plot(
            [b / 1e6 for b in curve.buffers], [rate / 1000 for rate in curve.rates], label=curve.algorithm
        )
        axes.plot(curve.optimum[0] / 1e6, curve.optimum[1] / 1000, "o", color=line.get_color(), markersize=7)
        axes.plot(curve.default[0] / 1e6, curve.default[1] / 1000, "|", color=line.get_color(), markersize=16, mew=2)
    axes.plot([], [], "o", color="grey", label="optimum")
    axes.plot([], [], "|", color="grey", markersize=12, mew=2, label="default")
    axes.set(xscale="log", xlabel="disk buffer, MB", ylabel="predicted, 1000 tuples per second")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _save(figure, file)


def source_overhead(results: Sequence[Overhead], file: Path) -> Path:
    """Throughput of the application, plain and by size of the blocks, as in Fig. 12 of paper 004."""
    figure, axes = _pyplot().subplots(figsize=(7.2, 4.2))
    names = ["plain", *(one.name.replace(", ", "\n") for one in results)]
    # each block size is shown against the plain slices of its own run
    rates = [100.0, *(100 * one.rate / one.plain_rate for one in results)]
    bars = axes.bar(names, rates, color=[_THEIRS, *[_OURS] * len(results)], width=0.6)
    axes.bar_label(bars, [f"{rate:.1f}" for rate in rates], padding=2, fontsize=8)
    axes.set(
        xlabel="records in a block",
        ylabel="orders per second, % of plain",
        title="Throughput of the legacy application while its orders are captured",
        ylim=(0, 115),
    )
    axes.grid(visible=True, axis="y", alpha=0.3)
    return _save(figure, file)
