"""The scenario bound against the 2024 bound by Hoeffding's inequality, for 1000 to 5000 random functions.

Hoeffding's inequality needs the range of the random norms: that of the random tail, T alpha_bar.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from safebo.kernels import Matern
from safebo.norms import Hoeffding, NormEstimator, Scenario
from safebo.norms.scenario import make_query
from safebo.report import legend, new_figure
from safebo.report.style import BLACK, BLUE, GREEN, GREY, LINES, ORANGE, PURPLE
from safebo.rkhs import random_function
from safebo.studies.common import Row
from safebo.studies.reproduce.figure import Figure, Outcome, Work, plain_axes, published

METHODS = {
    "scenario": "scenario approach",
    "hoeffding_2024": "Hoeffding 2024",
}
ITERATIONS = (5, 20, 50)
FIELDS = ("function", "m", *(f"{method}_t{t}" for method in METHODS for t in ITERATIONS))
COLOURS = (BLACK, BLUE, GREEN, PURPLE, ORANGE)


def settings(quick: bool) -> dict[str, Any]:
    """The paper's m and iterations."""
    size = {"functions": 3, "m": [1000, 3000, 5000]} if quick else {"functions": 40, "m": [1000, 2000, 3000, 4000, 5000]}
    return {"norm": 5.0, "gamma": 0.1, "kappa": 0.01, "noise": 0.01, "seed": 2024, **size}


def ratios(job: Row) -> Row:
    """B_t / ||f|| of all methods at t = 5, 20 and 50 on one random function."""
    rng = np.random.default_rng([job["seed"], job["function"]])
    kernel, norm = Matern(nu=1.5, lengthscale=0.1), job["norm"]
    f = random_function(kernel, 1, norm, int(rng.integers(2**31)), n_centres=1000)
    x = rng.random((max(ITERATIONS), 1))
    y = f(x) + job["noise"] * rng.normal(size=len(x))
    estimators: tuple[NormEstimator, ...] = (
        Scenario(m=job["m"], gamma=job["gamma"], kappa=job["kappa"]),
        Hoeffding(m=job["m"], gamma=job["gamma"]),
    )
    row: Row = {"function": job["function"], "m": job["m"]}
    for method, estimator in zip(METHODS, estimators, strict=True):
        bound = np.inf
        for t in ITERATIONS:
            query = make_query(x[:t], y[:t], kernel, job["noise"], [0.0], [1.0], (job["seed"], job["function"], t))
            bound = min(bound, estimator.estimate(query))
            row[f"{method}_t{t}"] = round(bound / norm, 6)
    return row


def make(work: Work) -> Outcome:
    """Mean ratios beside the paper's."""
    s = work.settings
    jobs = [{**s, "function": i, "m": m} for i in range(s["functions"]) for m in s["m"]]
    rows = work.rows("functions.csv", FIELDS, ("function", "m"), ratios, jobs)
    paper: dict[Any, Any] = {
        (r["method"], int(r["m"]), int(r["iteration"])): r["ratio"] for r in published("norm_ratio_tightness.csv")
    }
    table: dict[str, list[Any]] = {name: [] for name in ("method", "m", "iteration", "ratio", "std", "paper_ratio")}
    means: dict[tuple[str, int, int], float] = {}
    for method in METHODS:
        for m in s["m"]:
            for t in ITERATIONS:
                found = np.array([float(row[f"{method}_t{t}"]) for row in rows if int(row["m"]) == m])
                means[method, m, t] = float(found.mean())
                line = (method, m, t, means[method, m, t], float(found.std()), paper[method, m, t])
                for name, value in zip(table, line, strict=True):
                    table[name].append(value)
    work.csv("tightness.csv", table)
    _draw(work, means, paper)

    def advantage(of: dict[Any, Any]) -> float:
        """Hoeffding over scenario, mean over m and iterations."""
        return float(np.mean([of["hoeffding_2024", m, t] / of["scenario", m, t] for m in s["m"] for t in ITERATIONS]))

    shown = list(means)
    names = [f"{method}_m{m}_t{t}" for method, m, t in shown]
    off = {method: max(abs(means[k] / paper[k] - 1.0) for k in means if k[0] == method) for method in METHODS}
    ours: dict[str, Any] = dict(zip(names, (round(means[key], 4) for key in shown), strict=True)) | {
        "hoeffding_over_scenario": advantage(means)
    }
    theirs = {name: paper[key] for name, key in zip(names, shown, strict=True)} | {"hoeffding_over_scenario": advantage(paper)}
    under = sum(float(row[f"scenario_t{ITERATIONS[-1]}"]) < 1.0 for row in rows)
    ours["scenario_under_estimated_at_t50"] = f"{under} of {len(rows)}"
    falls = all(a >= b for m in s["m"] for a, b in pairwise([means["scenario", m, t] for t in ITERATIONS]))
    ours["scenario_tightens_with_samples"] = falls
    ours["largest_relative_difference"] = {method: round(value, 4) for method, value in off.items()}
    headline = f"Hoeffding is {advantage(means):.2f} times the scenario bound on average (paper {advantage(paper):.2f})"
    notes = (
        "The paper gives neither function nor norm, and seems to show one function: ours is the mean over functions of norm 5.",
        "B_t is the smallest bound of the iterations shown so far.",
        "All methods use the same samples and the same random functions.",
    )
    return Outcome(headline, ours, theirs, notes)


def _draw(work: Work, means: dict[Any, float], paper: dict[Any, Any]) -> None:
    figure = new_figure(9.5, 4.6)
    panels = figure.subplots(1, 2, sharey=True)
    for ax, (method, title) in zip(panels, METHODS.items(), strict=True):
        plain_axes(ax, "iteration t", "ratio B / ||f||", title)
        for m, colour in zip(work.settings["m"], COLOURS, strict=False):
            line = [means[method, m, t] for t in ITERATIONS]
            ax.plot(ITERATIONS, line, "o-", color=colour, lw=1.6, ms=5, label=f"m = {m}")
            line = [paper[method, m, t] for t in ITERATIONS]
            ax.plot(ITERATIONS, line, "o--", color=colour, lw=0.9, ms=4, mfc="white")
        ax.plot([], [], "o--", color=GREY, lw=0.9, ms=4, mfc="white", label="paper")
        ax.axhline(1.0, **{**LINES["limit"], "label": "B = ||f||"})
        ax.set_xticks(ITERATIONS)
        ax.label_outer()
    panels[0].set_ylim(0.0, 1.05 * max(max(means.values()), *(paper[key] for key in means)))
    legend(figure, columns=7)
    work.picture("tightness.png", figure)


FIGURE = Figure("tightness", "Fig. 10", "Scenario bound against Hoeffding's inequality, m = 1000 to 5000", settings, make)
