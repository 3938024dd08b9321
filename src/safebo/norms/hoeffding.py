"""The norm bound of PACSBO (Tokmak et al., 2024): mean of random norms plus Hoeffding's inequality."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from safebo.norms.base import NormQuery, count, positive, probability
from safebo.norms.scenario import RandomFunctions


@dataclass(frozen=True)
class Hoeffding:
    """B = mean of m random norms + sqrt(log(1/gamma) (b - a)^2 / (2 m)).

    [a, b] is the range of the random norms: a the norm of the interpolant of the data, b = sqrt(k(0)) (sum of its absolute
    coefficients + T alpha_bar), since |k| <= k(0). The bound is on the EXPECTED random norm; that this exceeds the norm of the
    unknown function is the assumption of the 2024 paper.
    """

    m: int = 1000
    gamma: float = 0.1
    alpha_bar: float = 1.0
    centres: int = 500

    def __post_init__(self) -> None:
        object.__setattr__(self, "m", count(self.m, "Hoeffding.m"))
        object.__setattr__(self, "centres", count(self.centres, "Hoeffding.centres"))
        object.__setattr__(self, "gamma", probability(self.gamma, "Hoeffding.gamma"))
        object.__setattr__(self, "alpha_bar", positive(self.alpha_bar, "Hoeffding.alpha_bar"))

    @property
    def kappa(self) -> float:
        """Hoeffding's inequality has no second level of confidence."""
        return 0.0

    def estimate(self, query: NormQuery) -> float:
        """The bound for one sub-domain."""
        functions = RandomFunctions(self.m, self.alpha_bar, self.centres)
        norms = functions.norms(query)
        tail = functions.tail_size(query.width, query.posterior.size)
        smallest = query.posterior.mean_norm
        largest = math.sqrt(query.kernel.outputscale) * (float(np.abs(query.posterior.weights).sum()) + tail * self.alpha_bar)
        spread = max(largest - smallest, 0.0)
        return float(norms.mean()) + math.sqrt(math.log(1.0 / self.gamma) / (2.0 * self.m)) * spread
