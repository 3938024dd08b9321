"""How often a norm bound covers the true local norm, without an optimizer: random functions, sub-domains and samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from safebo.domain import Cube
from safebo.kernels import Matern
from safebo.norms import AdaptiveScenario, NormQuery, PosteriorScenario, Scenario
from safebo.norms.scenario import make_query
from safebo.rkhs import random_function
from safebo.studies.common import Row, Table, parallel, rate_interval

FIELDS = ("norm", "width", "samples", "seed", "local_norm", "scenario", "largest", "adaptive", "posterior")
KEY = FIELDS[:4]
NORMS, WIDTHS, SAMPLES = (5.0, 13.0, 26.0), (0.1, 0.3, 1.0), (1, 3, 8)
_NOISE = 0.01

Case = tuple[float, float, int, int]


def measure(out: Path, functions: int, jobs: int) -> list[Row]:
    """Rows of coverage.csv, those that are missing computed first."""
    table = Table(out / "coverage.csv", FIELDS, KEY)
    cases: list[Case] = [(n, w, t, seed) for seed in range(functions) for n in NORMS for w in WIDTHS for t in SAMPLES]
    for row in parallel(estimate, [c for c in cases if dict(zip(KEY, c, strict=True)) not in table], jobs, "coverage"):
        table.add(row)
    table.sort(lambda row: tuple(float(row[name]) for name in KEY))
    return table.rows


def known(out: Path) -> list[Row]:
    """The rows that an earlier call has written."""
    return Table(out / "coverage.csv", FIELDS, KEY).rows


def estimate(case: Case) -> Row:
    """All bounds for one function, a random sub-domain with t samples, and as many samples around it.

    `largest` is the largest of the norms that `Scenario` draws: no rule for discarding some of them can give more.
    """
    norm, width, samples, seed = case
    kernel, rng = Matern(1.5, 0.1), np.random.default_rng((seed, samples, round(100 * width)))
    f = random_function(kernel, 1, norm, seed, 500)
    low = rng.random() * (1.0 - width)
    inside = low + width * rng.random((samples, 1))
    around = np.clip(low + 0.5 * width + 0.4 * (rng.random((samples, 1)) - 0.5), 0.0, 1.0)
    x = np.concatenate([inside, around[(around[:, 0] < low) | (around[:, 0] > low + width)]])
    y = f(x) + _NOISE * rng.normal(size=len(x))
    query = make_query(x[:samples], y[:samples], kernel, _NOISE, [low], [low + width], seed)
    everything = NormQuery(query.posterior, _NOISE, query.lower, query.upper, query.seed, (x, y))
    published = np.sort(Scenario().functions.norms(query))
    bounds = (
        Scenario().select(published),
        published[-1],
        *(e.estimate(everything) for e in (AdaptiveScenario(floor=None), PosteriorScenario())),
    )
    found = f.local_norm(Cube((low,), (low + width,)), 64), *bounds
    return dict(zip(FIELDS, (*case, *(round(float(v), 5) for v in found)), strict=True))


def coverage_table(rows: list[Row]) -> str:
    """Markdown: share of functions whose local norm is covered, and the median over-estimation."""
    text = [
        "## Norms alone", "",
        "Share of random functions (Matern 3/2, lengthscale 0.1, 500 centres) whose norm on a random sub-domain is at most the",
        "bound, and the median of bound / norm. Nominal coverage: 90 % for `Scenario`, 98 % for `AdaptiveScenario`.", "",
        "| norm | width | samples | functions | `Scenario` covers | median | `AdaptiveScenario` covers | 95 % | median |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KEY[:3]), []).append(row)
    for key, mine in groups.items():
        truth = np.array([float(r["local_norm"]) for r in mine])
        ratio = {name: np.array([float(r[name]) for r in mine]) / truth for name in ("scenario", "adaptive")}
        hits = int((ratio["adaptive"] >= 1.0).sum())
        low, high = rate_interval(hits, len(mine))
        text.append(
            f"| {' | '.join(f'{float(v):g}' for v in key)} | {len(mine)} | {100 * (ratio['scenario'] >= 1.0).mean():.0f} % "
            f"| {np.median(ratio['scenario']):.2f} | {100 * hits / len(mine):.0f} % | {100 * low:.0f}..{100 * high:.0f} % "
            f"| {np.median(ratio['adaptive']):.2f} |"
        )
    return "\n".join([*text, ""])
