"""The local cubes around two samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from safebo.domain import LocalCubes
from safebo.report import legend, new_figure
from safebo.report.style import BLACK, BLUE, scatter
from safebo.studies.reproduce.figure import Figure, Outcome, Work

SIDE = 3.75
"""Edge of the global domain in the units of the paper's drawing."""


def settings(quick: bool) -> dict[str, Any]:
    """Samples and Delta as drawn in the paper, in the unit square; there is nothing to shorten."""
    return {"n": 3, "delta": 0.6 / SIDE, "samples": [[1.1 / SIDE, 2.5 / SIDE], [2.75 / SIDE, 1.5 / SIDE]]}


def make(work: Work) -> Outcome:
    """The square with its cubes, numbered as in the paper."""
    from matplotlib.patches import Rectangle

    x = np.array(work.settings["samples"])
    cubes = LocalCubes(work.settings["n"], work.settings["delta"]).cubes(x)
    figure = new_figure(5.0, 5.4)
    ax = figure.subplots()
    for c, cube in enumerate(cubes):
        (left, bottom), (right, top) = cube.lower, cube.upper
        colour, label = (BLACK, "global domain") if c == 0 else (BLUE, f"local cubes, edges Δ to {work.settings['n']}Δ")
        ax.add_patch(
            Rectangle((left, bottom), right - left, top - bottom, fill=False, ec=colour, lw=1.8, label=label, clip_on=False)
        )
        at = (right - 0.015, top - 0.015) if c == 0 else (0.5 * (left + right), top + 0.004)
        place: dict[str, Any] = {"ha": "right", "va": "top"} if c == 0 else {"ha": "center", "va": "bottom"}
        ax.annotate(f"$c_{c}$", at, color=colour, fontsize=10, **place)
    scatter(ax, "sample", x[:, 0], x[:, 1], label="sample")
    for i, point in enumerate(x):
        ax.annotate(f"$a_{i + 1}$", point, xytext=(5, -2), textcoords="offset points", ha="left", va="top", fontsize=9)
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="first parameter", ylabel="second parameter", aspect="equal")
    ax.set_title(f"{len(x)} samples, N = {work.settings['n']}, Δ = {work.settings['delta']:g}")
    legend(figure, columns=3)
    work.picture("cubes.png", figure)
    work.csv(
        "cubes.csv",
        {
            "c": list(range(len(cubes))),
            **{f"{end}_{axis + 1}": [getattr(c, end)[axis] for c in cubes] for axis in range(2) for end in ("lower", "upper")},
            "edge_over_delta": [cube.width / work.settings["delta"] for cube in cubes],
        },
    )
    edges = [round(cube.width / work.settings["delta"], 9) for cube in cubes[1:]]
    ours = {"sub_domains": len(cubes), "edges_over_delta": edges}
    paper = {"sub_domains": 7, "edges_over_delta": [1, 2, 3, 1, 2, 3]}
    return Outcome(f"{len(cubes)} sub-domains (paper 7)", ours, paper, ("A drawing: positions and Δ are read off the paper's.",))


FIGURE = Figure("cubes", "Fig. 3", "Local cubes around two samples", settings, make)
