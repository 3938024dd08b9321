"""How many scenarios may be discarded, and the confidence without discarding any."""

from __future__ import annotations

from typing import Any

import numpy as np

from safebo.exceptions import InfeasibleScenarioError
from safebo.norms.scenario import discards
from safebo.report import legend, new_figure
from safebo.report.style import BLACK, BLUE, COLORMAP, LIGHT, VERMILLION
from safebo.studies.reproduce.figure import Figure, Outcome, Work, plain_axes, published


def settings(quick: bool) -> dict[str, Any]:
    """The paper's; the map beside it has the kappa of its experiments."""
    size = 12 if quick else 40
    return {
        "gamma": 0.01,
        "kappa": 0.001,
        "m": 2500,
        "map_kappa": 0.01,
        "map_m": [20, 5000],
        "map_gamma": [0.002, 0.2],
        "map": size,
    }


def allowed(m: int, gamma: float, kappa: float) -> int | None:
    """r of Theorem 1, None where even r = 0 is infeasible."""
    try:
        return discards(m, gamma, kappa)
    except InfeasibleScenarioError:
        return None


def make(work: Work) -> Outcome:
    """The three panels of the paper, and a map of both parameters."""
    s = work.settings
    over_gamma = _compare("discards_vs_gamma_m2500_kappa0.001.csv", "gamma", lambda g: allowed(s["m"], g, s["kappa"]))
    over_m = _compare("discards_vs_m_gamma0.01_kappa0.001.csv", "m", lambda m: allowed(int(m), s["gamma"], s["kappa"]))
    confidence = published("kappa_vs_m_r0_gamma0.01.csv")
    m = np.array([int(row["m"]) for row in confidence])
    kappa, paper_kappa = (1.0 - s["gamma"]) ** m, np.array([float(row["kappa"]) for row in confidence])
    work.csv("discards_vs_gamma.csv", over_gamma)
    work.csv("discards_vs_m.csv", {**over_m, "m": [int(v) for v in over_m["m"]]})
    work.csv("kappa_vs_m.csv", {"m": m, "kappa": kappa, "paper_kappa": paper_kappa})
    ms = np.unique(np.geomspace(s["map_m"][0], s["map_m"][1], s["map"]).astype(int))
    gammas = np.geomspace(s["map_gamma"][0], s["map_gamma"][1], s["map"])
    table = [(int(a), float(g), allowed(int(a), float(g), s["map_kappa"])) for a in ms for g in gammas]
    work.csv(
        "discards_map.csv",
        {"m": [a for a, _, _ in table], "gamma": [g for _, g, _ in table], "r": ["" if r is None else r for *_, r in table],
         "feasible": [int(r is not None) for *_, r in table]},
    )  # fmt: skip
    grid = np.array([np.nan if r is None else r for *_, r in table]).reshape(len(ms), len(gammas))
    _draw(work, over_gamma, over_m, (m, kappa, paper_kappa), (ms, gammas, grid))

    both = [(r, p, ok) for t in (over_gamma, over_m) for r, p, ok in zip(t["r"], t["paper_r"], t["feasible"], strict=True)]
    feasible = [(r, p) for r, p, ok in both if ok]
    equal = sum(r == p for r, p in feasible)
    error = float(np.abs(kappa / paper_kappa - 1.0).max())
    ours = {
        "discards_equal": equal, "discards_compared": len(feasible), "infeasible": len(both) - len(feasible),
        "largest_relative_difference_of_kappa": error, "discards_m1000_gamma0.1_kappa0.01": discards(1000, 0.1, 0.01),
    }  # fmt: skip
    headline = (
        f"{equal} of {len(feasible)} discards as in the paper, {len(both) - len(feasible)} infeasible; kappa within {error:.0e}"
    )
    notes = (
        "Where even r = 0 violates Theorem 1 the paper plots r = 0; r is left empty here, and the library raises an error.",
        "The map is not in the paper.",
    )
    return Outcome(headline, ours, {"discards_equal": len(feasible), "infeasible": 0}, notes)


def _compare(name: str, key: str, ours: Any) -> dict[str, list[Any]]:
    """The paper's column and ours; r is empty where it is infeasible."""
    rows = published(name)
    found = [ours(row[key]) for row in rows]
    return {
        key: [row[key] for row in rows],
        "r": ["" if r is None else r for r in found],
        "paper_r": [int(row["r"]) for row in rows],
        "feasible": [int(r is not None) for r in found],
    }


def _draw(work: Work, over_gamma: dict[str, Any], over_m: dict[str, Any], confidence: Any, grid: Any) -> None:
    s = work.settings
    figure = new_figure(9.6, 7.6)
    panels = figure.subplots(2, 2)
    for ax, table, key, symbol, title in (
        (panels[0, 0], over_gamma, "gamma", "γ", f"m = {s['m']}, κ = {s['kappa']:g}"),
        (panels[0, 1], over_m, "m", "m", f"γ = {s['gamma']:g}, κ = {s['kappa']:g}"),
    ):
        plain_axes(ax, symbol, "discards r", title)
        ok = np.array(table["feasible"], dtype=bool)
        x, paper = np.array(table[key]), np.array(table["paper_r"])
        every = max(1, len(x) // 25)
        ax.plot(x[ok], [r for r in table["r"] if r != ""], color=BLUE, lw=1.8, label="safebo")
        ax.plot(x[::every], paper[::every], "o", color=BLACK, ms=4.5, mfc="none", mew=0.9, label="paper")
        ax.plot(x[~ok], paper[~ok], "X", color=VERMILLION, mec="white", ms=8, label="infeasible: even r = 0 breaks Theorem 1")
    m, kappa, paper_kappa = confidence
    ax = panels[1, 0]
    plain_axes(ax, "m", "κ", f"γ = {s['gamma']:g}, r = 0")
    ax.plot(m, kappa, color=BLUE, lw=1.8)
    ax.plot(m, paper_kappa, "o", color=BLACK, ms=4.5, mfc="none", mew=0.9)
    ax.set_yscale("log")
    _draw_map(figure, panels[1, 1], grid, s["map_kappa"])
    legend(figure, columns=3)
    work.picture("scenario-ablation.png", figure)


def _draw_map(figure: Any, ax: Any, grid: Any, kappa: float) -> None:
    ms, gammas, r = grid
    ax.set_facecolor(LIGHT)
    ax.patch.set(hatch="///", edgecolor="white")
    colours = ax.pcolormesh(ms, gammas, r.T / ms, cmap=COLORMAP, shading="nearest", rasterized=True)
    levels = (1, 10, 100)
    ax.contour(ms, gammas, r.T, levels=levels, colors="white", linewidths=1.1)
    row = int(np.searchsorted(gammas, 0.06))  # where the lines are far from each other and from the border
    for level in levels:
        ax.text(1.08 * ms[np.nanargmax(r[:, row] >= level)], gammas[row], f"r ≥ {level}", color="white", fontsize=8, va="bottom")
    ax.set(xscale="log", yscale="log", xlabel="m", ylabel="γ", title=f"κ = {kappa:g} (not in the paper)")
    ax.fill_between([], [], fc=LIGHT, ec="white", lw=0.0, hatch="///", label="infeasible (map)")
    figure.colorbar(colours, ax=ax, label="share of scenarios discarded, r / m")


FIGURE = Figure("scenario-ablation", "Fig. 13", "Discards and confidence of the scenario approach", settings, make)
