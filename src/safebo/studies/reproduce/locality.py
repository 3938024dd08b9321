"""Local against global norm: a function that is steep in the middle and gentle elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from safebo.domain import Cube
from safebo.kernels import Matern
from safebo.report import legend, new_figure
from safebo.report.style import BLACK, BLUE, GREEN, VERMILLION
from safebo.rkhs import RKHSFunction
from safebo.studies.reproduce.figure import Figure, Outcome, Work, plain_axes

PARTS = {"left": (0.0, 0.35, BLUE, "-"), "centre": (0.35, 0.65, VERMILLION, "--"), "right": (0.65, 1.0, GREEN, "-.")}


def settings(quick: bool) -> dict[str, Any]:
    """Grid points of a local norm, and edges of the cubes in the second panel."""
    size = {"points": 120, "edges": 8} if quick else {"points": 500, "edges": 24}
    return {"norm": 5.0, "lengthscale": 0.1, "centres": 81, "steepness": 0.05, **size}


def steep_in_the_middle(norm: float, lengthscale: float, centres: int, steepness: float) -> RKHSFunction:
    """The function of this norm that interpolates a multiple of a gentle wave with a steep swing at 1/2."""
    kernel, z = Matern(nu=1.5, lengthscale=lengthscale), np.linspace(0.0, 1.0, centres)[:, None]
    u = (z[:, 0] - 0.5) / steepness
    shape = 0.15 * np.cos(2.0 * np.pi * z[:, 0]) + 1.2 * u * np.exp(-0.5 * u**2)
    return RKHSFunction(kernel, z, np.asarray(np.linalg.solve(kernel(z, z), shape), dtype=np.float64)).scaled_to(norm)


def make(work: Work) -> Outcome:
    """The function with the norms of its parts, and the norm of growing cubes around three points."""
    s = work.settings
    f = steep_in_the_middle(s["norm"], s["lengthscale"], s["centres"], s["steepness"])
    axis = np.linspace(0.0, 1.0, 401)
    values = f(axis[:, None])
    edges = np.linspace(0.04, 1.0, s["edges"])
    figure = new_figure(10.0, 4.3)
    left, right = figure.subplots(1, 2)
    plain_axes(left, "parameter a", "reward f(a)", f"global norm {f.norm:.1f}")
    plain_axes(right, "edge of the cube", "local norm", "cubes around the middle of each part")
    norms, table = {}, {"edge": edges}
    for name, (a, b, colour, style) in PARTS.items():
        norms[name] = f.local_norm(Cube((a,), (b,)), s["points"])
        left.axvspan(a, b, color=colour, alpha=0.10, lw=0)
        inside = (axis >= a) & (axis <= b)
        left.plot(axis[inside], values[inside], color=colour, lw=2.0)
        left.text(
            0.5 * (a + b), 0.97, f"{name}\nnorm {norms[name]:.1f}", color=colour, ha="center", va="top",
            transform=left.get_xaxis_transform(), fontweight="bold",
        )  # fmt: skip
        middle = np.array([0.5 * (a + b)])
        table[name] = np.array([f.local_norm(Cube.around(middle, e), s["points"]) for e in edges])
        right.plot(edges, table[name], color=colour, ls=style, lw=1.8, label=name)
    right.axhline(f.norm, color=BLACK, lw=1.2, ls=(0, (4, 1.5)), label="global norm")
    left.set(xlim=(0, 1), ylim=(values.min() - 0.15, values.max() + 1.4))
    right.set(xlim=(0, 1), ylim=(0, None))
    legend(figure, columns=4)
    work.picture("locality.png", figure)
    work.csv("function.csv", {"a": axis, "f": values})
    work.csv("local_norms.csv", table)
    ours = {"global_norm": f.norm, **{f"norm_{name}": value for name, value in norms.items()}}
    headline = f"global norm {f.norm:.1f}, local " + ", ".join(f"{name} {value:.1f}" for name, value in norms.items())
    notes = (
        "The paper shows an idea without numbers; the function is ours: a gentle wave with a steep swing in the middle.",
        "A local norm is that of the minimum-norm interpolant on a grid: a lower bound, which converges from below.",
    )
    return Outcome(headline, ours, {}, notes)


FIGURE = Figure("locality", "Fig. 11", "The norm on a part of the domain is smaller than on the whole", settings, make)
