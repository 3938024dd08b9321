"""`python -m benchmarks.nodes [--out DIR]`: what the nodes of `PosteriorScenario` lose, by the size of the sub-domain.

The root of the mean square norm a priori, at the nodes that are used and at more of them, in nodes.csv. `loss` is the share by
which the norm at the most nodes is larger; that of the function itself is larger still.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from unittest.mock import patch

import numpy as np

from safebo import Matern
from safebo.norms import conditioned

FINER = {2: (31, 41), 3: (11, 13, 15)}  # nodes per axis
EDGES = (1.0, 4.0, 10.0)  # lengthscales


def at_nodes(nu: float, edge: float, dim: int, size: int | None = None) -> tuple[int, float]:
    """Nodes per axis, as they are used unless told otherwise, and the root mean square norm of interpolants there."""
    fewest, most = (conditioned._FEWEST, conditioned._MOST) if size is None else (size, {dim: size})
    with patch.object(conditioned, "_FEWEST", fewest), patch.object(conditioned, "_MOST", most):
        box = conditioned._box.__wrapped__((edge,) * dim, Matern(nu, 0.1))
    return round(len(box.nodes) ** (1.0 / dim)), float(np.sqrt(box.variances.sum()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/calibration"))
    with (parser.parse_args().out / "nodes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("dimensions", "nu", "edge", "nodes_per_axis", "norm", "loss"))
        for dim, sizes in FINER.items():
            for edge in EDGES:
                for nu in (0.5, 1.5, 2.5):
                    found = [at_nodes(nu, edge, dim, size) for size in (None, *sizes)]
                    for size, norm in found:
                        writer.writerow((dim, nu, edge, size, f"{norm:.5g}", f"{found[-1][1] / norm - 1.0:.4f}"))
                    file.flush()
                    print(f"{dim}-D, nu {nu:g}, {edge:g} lengthscales: {100.0 * (found[-1][1] / found[0][1] - 1.0):.1f} %")


if __name__ == "__main__":
    main()
