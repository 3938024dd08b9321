"""Seconds of the scenario bound over iterations, numbers of random functions and numbers of centres."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from safebo.kernels import Matern
from safebo.norms import Scenario
from safebo.report import legend, new_figure
from safebo.report.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE
from safebo.studies.reproduce.figure import Figure, Outcome, Work, plain_axes, published

COLOURS = (BLUE, ORANGE, GREEN, BLACK)
ITERATIONS = (5, 20, 50, 100, 200, 300)


def settings(quick: bool) -> dict[str, Any]:
    """The paper's m and iterations; one dimension, where centres are kept in order, and two, where every pair is summed."""
    size = {"repeats": 3, "m": [500, 1000], "centres": [250, 500, 1000]} if quick else {
        "repeats": 9, "m": [500, 1000, 2000, 3000], "centres": [125, 250, 500, 1000, 2000],
    }  # fmt: skip
    return {"gamma": 0.1, "kappa": 0.01, "noise": 0.01, "lengthscale": 0.1, "dims": [1, 2], "seed": 0, **size}


def seconds(dim: int, m: int, centres: int, samples: int, settings: dict[str, Any]) -> float:
    """Median time of one scenario bound from data to B_t, after one call that is not counted (it may compile)."""
    rng = np.random.default_rng(settings["seed"])
    x, y = rng.random((samples, dim)), rng.standard_normal(samples)
    kernel, estimator = Matern(nu=1.5, lengthscale=settings["lengthscale"]), Scenario(m=m, centres=centres)
    box = {"lower": np.zeros(dim), "upper": np.ones(dim)}
    times = []
    for seed in range(settings["repeats"] + 1):  # a fresh seed each time, as in a run: no draw is reused
        start = time.perf_counter()
        estimator.select(estimator.sample_norms(x, y, kernel=kernel, noise=settings["noise"], seed=seed, **box))
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def make(work: Work) -> Outcome:
    """Time over iterations beside the paper's, and over the number of centres."""
    s = work.settings
    paper = {(int(r["m"]), int(r["iteration"])): float(r["seconds"]) for r in published("scenario_seconds.csv")}
    ours = {(m, t): seconds(1, m, 500, t, s) for m in s["m"] for t in ITERATIONS}
    work.csv(
        "seconds.csv",
        {
            "m": [m for m, _ in ours], "iteration": [t for _, t in ours], "seconds": list(ours.values()),
            "paper_seconds": [paper[key] for key in ours], "ratio": [paper[key] / value for key, value in ours.items()],
        },
    )  # fmt: skip
    by_centres = {(dim, n): seconds(dim, 1000, n, 20, s) for dim in s["dims"] for n in s["centres"]}
    work.csv(
        "seconds_by_centres.csv",
        {"dim": [d for d, _ in by_centres], "centres": [n for _, n in by_centres], "seconds": list(by_centres.values())},
    )
    _draw(work, ours, paper, by_centres)
    mine = {m: statistics.median(ours[m, t] for t in ITERATIONS) for m in s["m"]}
    theirs = {m: statistics.median(paper[m, t] for t in ITERATIONS) for m in s["m"]}
    notes = (
        "The paper's machine is not given, and not ours. results/benchmarks compares two programs on one machine.",
        "Median of several calls in one process; --jobs has no effect. The first call, which may compile, is not counted.",
        "N = max(500, t + 10) centres in all, t of them at the samples: with more samples there is less to sum over.",
        "The dimension is not given in the paper; the comparison is in one dimension.",
    )
    return Outcome(
        f"m = 1000: {1000 * mine[1000]:.1f} ms (paper {theirs[1000]:.1f} s)",
        {f"seconds_m{m}": v for m, v in mine.items()} | {"paper_over_ours_m1000": theirs[1000] / mine[1000]},
        {f"seconds_m{m}": v for m, v in theirs.items()},
        notes,
    )


def _draw(work: Work, ours: dict[Any, float], paper: dict[Any, float], by_centres: dict[Any, float]) -> None:
    figure = new_figure(10.0, 4.6)
    left, right = figure.subplots(1, 2)
    plain_axes(left, "iteration t (number of samples)", "time of one bound (s)", "one dimension, N = 500 centres")
    for m, colour in zip(work.settings["m"], COLOURS, strict=False):
        left.plot(ITERATIONS, [ours[m, t] for t in ITERATIONS], "o-", color=colour, lw=1.6, ms=5, label=f"m = {m}")
        left.plot(ITERATIONS, [paper[m, t] for t in ITERATIONS], "o--", color=colour, lw=0.9, ms=4, mfc="white")
    left.plot([], [], "o--", color=GREY, lw=0.9, ms=4, mfc="white", label="paper")
    left.set_yscale("log")
    plain_axes(right, "number of centres N", "time of one bound (s)", "m = 1000, t = 20")
    for dim, style, colour in zip(work.settings["dims"], ("s-", "^-"), (PURPLE, GREY), strict=True):
        line = [by_centres[dim, n] for n in work.settings["centres"]]
        right.plot(work.settings["centres"], line, style, color=colour, lw=1.6, ms=5, label=f"{dim} dimension{'s' * (dim > 1)}")
    right.set(xscale="log", yscale="log")
    right.set_xticks(work.settings["centres"], [str(n) for n in work.settings["centres"]])
    right.set_xticks([], minor=True)
    legend(figure, columns=7)
    work.picture("scenario-time.png", figure)


FIGURE = Figure("scenario-time", "Fig. 12", "Time of the scenario bound against m, t and N", settings, make)
