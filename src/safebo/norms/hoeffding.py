"""The norm bound of PACSBO (Tokmak et al., 2024): mean of random norms plus Hoeffding's inequality."""

from __future__ import annotations

import math
from dataclasses import dataclass

from safebo.norms.base import NormQuery, count, positive, probability
from safebo.norms.scenario import RandomFunctions


@dataclass(frozen=True)
class Hoeffding:
    """B = mean of m random norms + sqrt(log(1/gamma) / (2 m)) (b - a).

    [a, b] is the range of the random norms. A random function is the interpolant of the data plus what remains of its tail after
    interpolating the tail's own values at the samples. That remainder is no larger than the tail, whose norm is at most
    sqrt(k(0)) T alpha_bar, so with a the norm of the interpolant b - a = sqrt(k(0)) T alpha_bar. The bound is on the EXPECTED
    random norm; that this exceeds the norm of the unknown function is the assumption of the 2024 paper.
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
        tail = functions.tail_size(query.width, query.posterior.size)
        spread = math.sqrt(query.kernel.outputscale) * tail * self.alpha_bar
        return float(functions.norms(query).mean()) + math.sqrt(math.log(1.0 / self.gamma) / (2.0 * self.m)) * spread
