"""The study's three figures as SVG, the same bytes for the same study.

The only module that needs matplotlib: it is imported when figures are asked for.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from properties.study import exponent, rounds, rules
from properties.study.results import Study

# Okabe and Ito's palette, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
STYLE: Any = {
    "svg.hashsalt": "latentmoe-gate",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}
LINES = {
    ("k+1", "q+1"): (ORANGE, "o"),
    ("k+1", "q"): (BLUE, "s"),
    ("k+1", "linear"): (GREY, "^"),
    ("midpoint", "midpoint"): (GREEN, "D"),
}

__all__ = ["drawn"]


def drawn(study: Study) -> dict[str, bytes]:
    """A file name and its content for each section that was measured."""
    jobs: list[tuple[str, Callable[[Any], Figure], Any]] = [
        ("study-rules.svg", rules_figure, study.rules),
        ("study-rounds.svg", rounds_figure, study.rounds),
        ("study-exponent.svg", exponent_figure, study.exponent),
    ]
    with mpl.rc_context(STYLE):
        return {name: _svg(make(part)) for name, make, part in jobs if part is not None}


def _svg(figure: Figure) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="svg", metadata={"Date": None}, facecolor="white")
    return held.getvalue()


def rules_figure(classes: Sequence[rules.RuleClass]) -> Figure:
    """A panel per class: both shares of every pair with their intervals."""
    figure = Figure(figsize=(10.0, 5.2), layout="constrained")
    panels = figure.subplots(1, len(classes), sharey=True, squeeze=False)[0]
    for axes, entry in zip(panels, classes, strict=True):
        for offset, colour, marker, label, shares in (
            (-0.16, BLUE, "o", "dual reaches LP*", [row.dual for row in entry.rows]),
            (0.16, ORANGE, "s", "routing certified optimal", [row.routing for row in entry.rows]),
        ):
            places = [i + offset for i in range(len(shares))]
            axes.hlines(
                places,
                [100 * share.low for share in shares],
                [100 * share.high for share in shares],
                color=colour,
            )
            middles = [100 * share.hits / max(1, share.of) for share in shares]
            axes.plot(middles, places, marker, color=colour, markersize=4.5, label=label)
        axes.set_title(entry.name)
        axes.set_xlim(-3, 103)
        axes.set_xlabel("% of instances")
    names = [f"{row.token_rule}, {row.expert_rule}" for row in classes[0].rows]
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[0].set_ylabel("token rule, expert rule")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def rounds_figure(curves: Sequence[rounds.Curve]) -> Figure:
    """A panel per size: gaps on a log axis; a cross where the next round reaches LP*."""
    shapes = list(dict.fromkeys((curve.m, curve.n, curve.top_k) for curve in curves))
    figure = Figure(figsize=(10.0, 3.8), layout="constrained")
    panels = figure.subplots(1, len(shapes), sharey=True, squeeze=False)[0]
    for axes, shape in zip(panels, shapes, strict=True):
        for curve in curves:
            if (curve.m, curve.n, curve.top_k) == shape:
                _curve(axes, curve)
        m, n, top_k = shape
        axes.set_title(f"{m} x {n}, k = {top_k}")
        axes.set_xlabel("round")
        axes.set_yscale("log")
    panels[0].set_ylabel("(dual - LP*) / LP*")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def _curve(axes: Any, curve: rounds.Curve) -> None:
    pair = (curve.token_rule, curve.expert_rule)
    colour, marker = LINES[pair]
    above = [(t, gap) for t, gap in enumerate(curve.gaps) if gap > 0.0]
    xs, ys = [t for t, _ in above], [gap for _, gap in above]
    if curve.outcome == "jammed" and curve.reached is None:
        xs, ys = [*xs, rounds.ROUNDS], [*ys, ys[-1]]
    name = rounds.NAMES[curve.token_rule, curve.expert_rule]
    label = f"{pair[0]}, {pair[1]}: {name}"
    axes.plot(xs, ys, color=colour, marker=marker, markersize=3.5, markevery=10, label=label)
    if curve.reached is not None and above:
        axes.plot(xs[-1:], ys[-1:], "x", color=colour, markersize=8, markeredgewidth=2)


def exponent_figure(series: Sequence[exponent.Series]) -> Figure:
    """Every instance's gap, means, and the fitted power laws."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes: Any = figure.subplots()
    for entry in series:
        pair = (entry.token_rule, entry.expert_rule)
        colour, marker = LINES[pair]
        above = [(size.m, gap) for size in entry.sizes for gap in size.gaps if gap > 0.0]
        xs, ys = [m for m, _ in above], [gap for _, gap in above]
        axes.plot(xs, ys, marker, color=colour, markersize=3.5, alpha=0.45, label=_label(pair))
        for fit in entry.fits:
            ends = [fit.first, fit.last]
            heights = [fit.factor * m**fit.exponent for m in ends]
            told = f"$m^{{{fit.exponent:.2f}}}$  [{fit.low:.2f}, {fit.high:.2f}]"
            axes.plot(ends, heights, color="black", linewidth=1.4)
            middle = (ends[0] * ends[1]) ** 0.5
            height = (heights[0] * heights[1]) ** 0.5
            axes.annotate(told, (middle, height), (8, 6), textcoords="offset points")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(f"tokens m (n = {exponent.NUM_EXPERTS}, k = {exponent.TOP_K})")
    axes.set_ylabel("(dual - LP*) / LP*")
    axes.legend(loc="lower left")
    return figure


def _label(pair: tuple[str, str]) -> str:
    rest = "at rest" if pair == exponent.AS_WRITTEN else "after as many rounds"
    return f"{pair[0]}, {pair[1]}: {rest}"
