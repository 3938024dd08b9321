"""Random RKHS functions through the data: they approach the unknown function as samples come in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from safebo.kernels import Matern, StationaryKernel
from safebo.norms import NormQuery, Scenario
from safebo.norms.scenario import RandomFunctions, make_query
from safebo.report import legend, new_figure
from safebo.report.style import LINES, ORANGE, SKY, scatter
from safebo.rkhs import RKHSFunction, random_function
from safebo.studies.reproduce.figure import Figure, Outcome, Work, plain_axes

FloatArray = NDArray[np.float64]
KERNEL = Matern(nu=1.5, lengthscale=0.1)
NOISE = 0.01


def settings(quick: bool) -> dict[str, Any]:
    """Everything but the numbers of samples and the seed is the paper's."""
    size = {"m": 200, "drawn": 30, "moments": [3, 10, 30]} if quick else {"m": 1000, "drawn": 30, "moments": [3, 10, 40]}
    return {"norm": 5.0, "centres": 500, "alpha_bar": 1.0, "noise": NOISE, "lengthscale": 0.1, "seed": 1, **size}


def random_rkhs_functions(family: RandomFunctions, query: NormQuery, number: int) -> list[RKHSFunction]:
    """The first `number` of the random functions whose norms `family.norms(query)` computes."""
    x, kernel = query.posterior.x, query.kernel
    centres, coefficients = family.draw(family.tail_size(query.width, len(x)), x.shape[1], query.seed)
    return [
        _through(kernel, query, query.lower + (query.upper - query.lower) * z.T.astype(float), a.astype(float))
        for z, a in zip(centres[:number], coefficients[:number], strict=True)
    ]


def _through(kernel: StationaryKernel, query: NormQuery, tail: FloatArray, a: FloatArray) -> RKHSFunction:
    """The function with this tail that passes the data up to noise: (K + sigma^2 I) b = y - k(X, Z) a."""
    x, y = query.posterior.x, query.posterior.y
    head = np.linalg.solve(kernel(x, x) + query.noise**2 * np.eye(len(x)), y - kernel(x, tail) @ a)
    return RKHSFunction(kernel, np.concatenate([x, tail]), np.concatenate([head, a]))


def make(work: Work) -> Outcome:
    """Three moments; functions that the scenario bound discards in another colour."""
    s = work.settings
    scenario = Scenario(m=s["m"], alpha_bar=s["alpha_bar"], centres=s["centres"])
    f = random_function(KERNEL, 1, s["norm"], s["seed"], 1000)
    rng = np.random.default_rng(s["seed"])
    x = rng.random((max(s["moments"]), 1))
    y = f(x) + NOISE * rng.standard_normal(len(x))
    axis = np.linspace(0.0, 1.0, 151)
    truth = f(axis[:, None])
    table: dict[str, list[Any]] = {"samples": [], "a": [], "f": [], **{f"rho_{j + 1}": [] for j in range(s["drawn"])}}
    figures: dict[str, list[Any]] = {"samples": [], "bound": [], "mean_norm": [], "rms_distance": [], "discarded": []}
    figure = new_figure(11.0, 4.3)
    for ax, t in zip(figure.subplots(1, len(s["moments"]), sharey=True), s["moments"], strict=True):
        query = make_query(x[:t], y[:t], KERNEL, NOISE, [0.0], [1.0], (s["seed"], t))
        norms = scenario.functions.norms(query)
        bound = scenario.select(np.sort(norms))
        values = np.array([rho(axis[:, None]) for rho in random_rkhs_functions(scenario.functions, query, s["drawn"])])
        gone = norms[: s["drawn"]] > bound
        distance = float(np.sqrt(np.mean((values - truth) ** 2)))
        for part, colour, label, order in ((~gone, SKY, "random function", 1.5), (gone, ORANGE, "discarded: norm above B", 1.6)):
            ax.plot(axis, values[part].T, color=colour, lw=0.7, alpha=0.8, zorder=order)
            ax.plot([], [], color=colour, lw=1.4, label=label)
        ax.plot(axis, truth, zorder=3, **LINES["truth"])
        scatter(ax, "sample", x[:t, 0], y[:t])
        plain_axes(ax, "parameter a", "reward", f"t = {t}: B = {bound:.1f}, distance to f {distance:.2f}")
        ax.set_xlim(0.0, 1.0)
        ax.label_outer()
        for name, value in zip(figures, (t, bound, float(norms.mean()), distance, scenario.discards), strict=True):
            figures[name].append(value)
        for name, column in zip(table, (np.full(len(axis), t), axis, truth, *values), strict=True):
            table[name].extend(column if name == "samples" else np.round(column, 4))
    legend(figure)
    work.picture("random-functions.png", figure)
    work.csv("functions.csv", table)
    work.csv("distance.csv", figures)
    ours = {"samples": figures["samples"], "rms_distance": figures["rms_distance"], "bound": figures["bound"]}
    headline = (
        f"distance to f {figures['rms_distance'][0]:.2f} at t = {s['moments'][0]}, {figures['rms_distance'][-1]:.2f} at the end"
    )
    notes = (
        "The paper prints no numbers and does not say how many samples its three panels have.",
        f"{s['drawn']} of {s['m']} functions are drawn; the bound discards the {scenario.discards} with the largest norms.",
        "The distance is the root mean square over the drawn functions and the domain.",
    )
    return Outcome(headline, ours, {}, notes)


FIGURE = Figure("random-functions", "Fig. 2", "Random RKHS functions through 3, 10 and 40 samples", settings, make)
