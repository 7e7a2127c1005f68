#!/usr/bin/env python3
"""Draw the panels of the dashboard from what its queries returned (tests.py, DRAW=1).

	draw.py DRAWN.json PICTURE.png
"""
import json
import sys

import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FuncFormatter  # noqa: E402

COLOURS = {"starting": "#5794f2", "streaming": "#73bf69", "idle": "#a8d8a0", "paused": "#5794f2", "outage": "#ff9830"}
RED = "#e02f44"


def quantity(unit):
    """How an axis says a number of Grafana's unit."""
    def said(value, _=None):
        if unit == "bytes":
            for name in ("B", "KiB", "MiB"):
                if value < 1024 or name == "MiB":
                    return f"{value:.0f} {name}"
                value /= 1024
        return f"{value:g}" + {"s": " s", "cps": "/s"}.get(unit, "")
    return said


def points(values, began):
    """Seconds of the run, and numbers; NaN, and a gap, which becomes one, are not drawn."""
    seconds, numbers = [], []
    for t, value in values:
        if seconds and t - began - seconds[-1] > 1.5:
            seconds.append(seconds[-1] + 1)
            numbers.append(float("nan"))
        seconds.append(t - began)
        numbers.append(float(value))
    return seconds, numbers


def draw_states(axes, panel, states, began):
    for row, (legend, values) in enumerate(panel["results"]):
        for (t, value), (after, _) in zip(values, values[1:]):
            name = states[int(float(value))]
            axes.barh(row, after - t, left=t - began, height=0.8, color=COLOURS.get(name, RED), linewidth=0)
    axes.set_yticks(range(len(panel["results"])), [legend for legend, _ in panel["results"]])
    used = {int(float(value)) for _, values in panel["results"] for _, value in values}
    axes.legend(handles=[pyplot.Rectangle((0, 0), 1, 1, color=COLOURS.get(states[n], RED), label=states[n])
                         for n in sorted(used)], ncols=len(used), fontsize=7, loc="lower right", bbox_to_anchor=(1, 1))


def draw_lines(axes, panel, began):
    for legend, values in panel["results"]:
        axes.plot(*points(values, began), linewidth=1.1, label=legend, marker="." if len(values) < 4 else None)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(quantity(panel["unit"])))
    axes.legend(fontsize=6, loc="upper left", ncols=2, framealpha=0.6)


def main(source, picture):
    with open(source, encoding="utf-8") as file:
        drawn = json.load(file)
    charts = [panel for panel in drawn["panels"] if panel["type"] == "timeseries"]
    began = min(values[0][0] for panel in drawn["panels"] for _, values in panel["results"])
    figure = pyplot.figure(figsize=(13, 13), dpi=72, layout="constrained")
    grid = figure.add_gridspec(1 + (len(charts) + 1) // 2, 2)
    axes = figure.add_subplot(grid[0, :])
    state = next(panel for panel in drawn["panels"] if panel["type"] == "state-timeline")
    draw_states(axes, state, drawn["states"], began)
    axes.set_title(state["title"], fontsize=9, loc="left")
    for n, panel in enumerate(charts):
        axes = figure.add_subplot(grid[1 + n // 2, n % 2])
        draw_lines(axes, panel, began)
        axes.set_title(panel["title"], fontsize=9, loc="left")
    for axes in figure.axes:
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3, linewidth=0.5)
        axes.set_xlim(left=0)
        axes.set_axisbelow(True)
    figure.supxlabel("seconds since the run began; each alert of the rules is made to happen once", fontsize=8)
    figure.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
