"""How narrow the way from the start to the optimum is, for every problem in two dimensions.

Notation
    h           threshold
    bottleneck  b = h' - h for the largest h' such that the start and a point that counts as solved are connected in {f >= h'}
    half-width  of the interval, with the true norm, at a point measured ten times and no other
    reach       how far from that point f >= h is still certified, if f is h + b there: the first step that the bottleneck allows
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from safebo.bounds import MartingaleMixture, intersection
from safebo.domain import Cube, Grid
from safebo.posterior import Posterior, scaled_columns
from safebo.problems import RKHSProblem
from safebo.studies.calibrate.cases import FAMILIES, HELD_OUT, KNOWN, PARTS, YARDSTICK
from safebo.studies.common import Row, Table, parallel

FIELDS = ("family", "seed", "norm", "start", "bottleneck", "noise_sds", "half_width", "half_widths", "reach")
KEY = FIELDS[:2]
REPEATS, DELTA = 10, 0.01
_POINTS = 301  # per axis, as many as the problem's own flood fill
_DISTANCES = np.linspace(0.0, 2.0, 4001)  # lengthscales

Case = tuple[str, int]


def measure(out: Path, seeds: list[int], jobs: int) -> list[Row]:
    """Rows of bottlenecks.csv, those that are missing computed first."""
    table = Table(out / "bottlenecks.csv", FIELDS, KEY)
    families = PARTS["2-D"].families
    cases: list[Case] = [(name, seed) for seed in seeds for name in families]
    for row in parallel(estimate, [c for c in cases if dict(zip(KEY, c, strict=True)) not in table], jobs, "bottlenecks"):
        table.add(row)
    table.sort(lambda row: (families.index(row["family"]), int(row["seed"])))
    return table.rows


def known(out: Path) -> list[Row]:
    """The rows that an earlier call has written."""
    return Table(out / "bottlenecks.csv", FIELDS, KEY).rows


def estimate(case: Case) -> Row:
    """One problem."""
    name, seed = case
    problem = FAMILIES[name].problem(seed)
    grid = Grid(Cube.whole(2), (_POINTS, _POINTS))
    points = grid.points()
    values = problem.f(points).reshape(grid.shape)
    start = int(np.argmin(np.sum((points - problem.initial) ** 2, axis=1)))
    solved = values >= problem.initial_value + 0.95 * (problem.optimum - problem.initial_value)
    margin = max_min(values, start, solved) - problem.threshold
    width, reach = first_step(problem, margin)
    row = (problem.norm, values.flat[start] - problem.threshold, margin, margin / problem.noise, width, margin / width, reach)
    return dict(zip(FIELDS, (name, seed, *(round(float(v), 4) for v in row)), strict=True))


def max_min(values: Any, start: int, goal: Any) -> float:
    """The largest level at which the start and a goal are connected (neighbours share a face): by bisection over the values."""

    def connected(level: float) -> bool:
        component, _ = ndimage.label(values >= level)
        return bool((goal & (component == component.flat[start])).any())

    levels = np.unique(values[values <= values.flat[start]])
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if connected(levels[middle]) else (low, middle - 1)
    return float(levels[low])


def first_step(problem: RKHSProblem, margin: float) -> tuple[float, float]:
    """Half-width at a point measured `REPEATS` times as h + margin, and the certified distance from it in lengthscales."""
    kernel, noise, bound = problem.kernel, problem.noise, MartingaleMixture()
    lengthscale = float(kernel.lengthscales(2)[0])
    samples, value = np.zeros((REPEATS, 2)), problem.threshold + margin
    posterior = Posterior.empty(kernel, 2, bound.regulariser(noise)).extend(samples, np.full(REPEATS, value))
    line = np.column_stack([lengthscale * _DISTANCES, np.zeros(len(_DISTANCES))])
    field = intersection(bound, posterior, scaled_columns(line.T, kernel), problem.norm, noise, DELTA)
    lower, upper = field.lower, field.upper
    certified = lower >= problem.threshold
    steps = len(_DISTANCES) if certified.all() else int(np.argmin(certified))
    return 0.5 * float(upper[0] - lower[0]), float(_DISTANCES[steps - 1]) if steps else 0.0


def joined(ways: list[Row], rows: list[Row]) -> list[Row]:
    """Bottlenecks, the shortest reach first, with the experiments that each method of the study needed; None: not run."""
    firsts = {(r["family"], r["method"], r["seed"]): r["first_solved"] for r in rows if r["part"] in ("2-D", HELD_OUT)}
    found = [way | {m: firsts.get((way["family"], m, way["seed"])) for m in ("default", KNOWN, YARDSTICK)} for way in ways]
    return sorted(found, key=lambda row: float(row["reach"]))


def bottleneck_table(ways: list[Row], rows: list[Row]) -> str:
    """Markdown: one line per problem."""
    text = [
        "## Bottlenecks in two dimensions",
        "",
        "Margins to the threshold, of the start and of the narrowest place on the widest way to a solution. The latter also in",
        f"standard deviations of the noise, and in half-widths of the interval (true norm) at a point measured {REPEATS} times.",
        "Reach: how far the narrowest place lets one go from such a point, in lengthscales. Then the experiments until solved",
        "(-: not solved) by the default, by the default told the true norm, and by SafeOpt told the true norm.",
        "",
        "| problems | seed | norm | start | bottleneck | / noise | / half-width | reach | default | norm told | SafeOpt |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    formats = {"norm": ".1f", "start": ".2f", "bottleneck": ".2f", "noise_sds": ".0f", "half_widths": ".0f", "reach": ".3f"}
    for row in joined(ways, rows):
        cells = [row["family"], row["seed"], *(format(float(row[name]), digits) for name, digits in formats.items())]
        cells += ["not run" if row[m] is None else row[m] or "-" for m in ("default", KNOWN, YARDSTICK)]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join([*text, ""])
