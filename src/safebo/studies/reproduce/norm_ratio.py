"""The ratio B_t / ||f|| over iterations: how tight the learned norm is, and how often it is too small."""

from __future__ import annotations

from typing import Any

import numpy as np

from safebo.kernels import Matern
from safebo.norms import Scenario
from safebo.report import legend, new_figure
from safebo.report.style import BLACK, BLUE, LINES, VERMILLION
from safebo.rkhs import random_function
from safebo.studies.common import Row, rate_interval
from safebo.studies.reproduce.figure import Figure, Outcome, Work, plain_axes, published

ITERATIONS = 29
FIELDS = ("function", "norm", *(f"t{t}" for t in range(1, ITERATIONS + 1)))


def settings(quick: bool) -> dict[str, Any]:
    """The paper's, apart from the seed."""
    size = {"functions": 12, "m": 200} if quick else {"functions": 200, "m": 1000}
    return {"norms": [1.0, 10.0], "centres_of_f": [100, 1000], "gamma": 0.1, "kappa": 0.01, "noise": 0.01, "seed": 2025, **size}


def ratios(job: Row) -> Row:
    """B_t / ||f|| for t = 1..29 on one random function with uniform samples, B_t non-increasing as in Alg. 3."""
    function, m, noise = job["function"], job["m"], job["noise"]
    rng = np.random.default_rng([job["seed"], function])
    kernel, norm = Matern(nu=1.5, lengthscale=0.1), rng.uniform(*job["norms"])
    f = random_function(kernel, 1, norm, int(rng.integers(2**31)), n_centres=tuple(job["centres_of_f"]))
    x = rng.random((ITERATIONS, 1))
    y = f(x) + noise * rng.normal(size=ITERATIONS)
    estimator, bound = Scenario(m=m, gamma=job["gamma"], kappa=job["kappa"]), np.inf
    row: Row = {"function": function, "norm": round(norm, 6)}
    for t in range(1, ITERATIONS + 1):
        norms = estimator.sample_norms(x[:t], y[:t], kernel=kernel, noise=noise, lower=[0.0], upper=[1.0], seed=(function, t))
        bound = min(bound, estimator.select(norms))
        row[f"t{t}"] = round(bound / norm, 6)
    return row


def make(work: Work) -> Outcome:
    """All functions, their mean and spread beside the paper's, and the share of functions that are under-estimated so far."""
    s = work.settings
    rows = work.rows("functions.csv", FIELDS, ("function",), ratios, [{"function": i, **s} for i in range(s["functions"])])
    table = np.array([[float(row[name]) for name in FIELDS[2:]] for row in rows])
    mean, std, under = table.mean(axis=0), table.std(axis=0), (table < 1.0).sum(axis=0)
    paper = published("norm_ratio_over_iterations.csv")
    low = np.array([float(row["mean_minus_std"]) for row in paper])
    high = np.array([float(row["mean_plus_std"]) for row in paper])
    t, paper_mean = np.arange(1, ITERATIONS + 1), 0.5 * (low + high)
    work.csv(
        "ratio.csv",
        {
            "iteration": t, "mean_ratio": mean, "std": std, "under_estimated": under,
            "paper_mean_ratio": paper_mean, "paper_std": 0.5 * (high - low),
        },
    )  # fmt: skip
    _draw(work, t, (mean, std), (paper_mean, low, high), under)
    count, allowed = int(under[-1]), s["gamma"] * len(rows)
    ours = {
        "functions": len(rows), "mean_ratio_t1": float(mean[0]), "mean_ratio_t29": float(mean[-1]),
        "t29_over_t1": float(mean[-1] / mean[0]), "under_estimated": count,
        "under_estimated_rate_95": [round(v, 4) for v in rate_interval(count, len(rows))],
        "largest_difference_of_means": float(np.abs(mean - paper_mean).max()), "guarantee_allows": allowed,
    }  # fmt: skip
    theirs = {
        "functions": 200, "mean_ratio_t1": float(paper_mean[0]), "mean_ratio_t29": float(paper_mean[-1]),
        "t29_over_t1": float(paper_mean[-1] / paper_mean[0]), "under_estimated": 2,
    }  # fmt: skip
    headline = (
        f"mean ratio {mean[0]:.2f} to {mean[-1]:.2f} (paper {paper_mean[0]:.2f} to {paper_mean[-1]:.2f}), "
        f"{count} of {len(rows)} under-estimated (paper 2 of 200, guarantee {allowed:.0f})"
    )
    notes = (
        "The paper's means at t = 14 and 24 are missing in its plot; they are the middle of its band, as everywhere else.",
        "The level depends on the drawn norms (E[1/||f||] over U[1, 10]), which differ from the paper's; the shape does not.",
        "B_t never increases, so a function under-estimated at some iteration is so at the last.",
    )
    return Outcome(headline, ours, theirs, notes)


def _draw(work: Work, t: Any, ours: tuple[Any, Any], paper: tuple[Any, Any, Any], under: Any) -> None:
    figure = new_figure(7.2, 5.8)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1.0))
    mean, std = ours
    plain_axes(above, "", "ratio B / ||f||", f"{work.settings['functions']} random functions with norms from 1 to 10")
    above.fill_between(t, mean - std, mean + std, color=BLUE, alpha=0.18, lw=0, label="± standard deviation")
    above.plot(t, mean, color=BLUE, lw=1.8, label="mean, safebo")
    above.plot(t, paper[0], color=BLACK, lw=1.2, ls="--", label="mean, paper")
    above.plot(t, paper[1], color=BLACK, lw=0.8, ls=":", label="± standard deviation, paper")
    above.plot(t, paper[2], color=BLACK, lw=0.8, ls=":")
    above.axhline(1.0, **{**LINES["limit"], "label": "B = ||f||; rate that is allowed"})
    above.set(xlim=(1, ITERATIONS), ylim=(0, None))
    plain_axes(below, "iteration t", "too small (%)")
    below.step(t, 100.0 * under / work.settings["functions"], where="mid", color=BLUE, lw=1.8)
    below.axhline(100.0 * work.settings["gamma"], color=VERMILLION, ls=(0, (1.2, 1.2)), lw=1.3)
    below.set_ylim(-0.4, None)
    legend(figure, columns=3)
    work.picture("norm-ratio.png", figure)


FIGURE = Figure("norm-ratio", "Fig. 4", "The learned norm relative to the true one over iterations", settings, make)
