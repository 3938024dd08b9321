"""The algorithms of the literature as configurations of the same parts, with their published hyper-parameters.

All of them use the confidence bound as printed in the paper (`Paper`), the safe set of the authors' experiments (lower bound
above the threshold) and leave norms unchallenged (`falsify=False`), so that they show what was published. One exception:
Algorithm 4 ranks its candidates by what all sub-domains know together; `acquisition="paper"` is the printed line 7, which
measures many points again that another sub-domain knows already. Any argument of `SafeOptimizer` can be overridden.
"""

from __future__ import annotations

import warnings
from typing import Any

from safebo.bounds import Paper
from safebo.domain import Box, LocalCubes, SampleHull
from safebo.exceptions import SettingsWarning
from safebo.kernels import Matern
from safebo.norms import Fixed, Hoeffding, NormEstimator, Scenario
from safebo.norms.base import provides
from safebo.optimizer import SafeOptimizer


def _paper(domain: Box, threshold: float | None, defaults: dict[str, Any], overrides: dict[str, Any]) -> SafeOptimizer:
    settings: dict[str, Any] = {
        "kernel": Matern(nu=1.5, lengthscale=0.1),
        "noise": 0.01,
        "delta": 0.01,
        "bound": Paper(),
        "safe_set": "confidence",
        "acquisition": "paper",
        "falsify": False,
        "stride": None,
        "min_width": 0.1,
        **defaults,
        **overrides,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SettingsWarning)  # the docstring above says what is meant by these settings
        return SafeOptimizer(domain, threshold, **settings)


def algorithm_4(domain: Box, threshold: float | None, **overrides: Any) -> SafeOptimizer:
    """Algorithm 4: learned norm, local cubes (N = 5, Delta = 0.1 as in the paper's synthetic experiment)."""
    return _paper(domain, threshold, {"norm": Scenario(), "cubes": LocalCubes(n=5, delta=0.1), "acquisition": "joint"}, overrides)


def algorithm_1(domain: Box, threshold: float | None, **overrides: Any) -> SafeOptimizer:
    """Algorithm 1: learned norm, global domain only."""
    return _paper(domain, threshold, {"norm": Scenario(), "cubes": None}, overrides)


def safeopt(domain: Box, threshold: float | None, *, norm: float | NormEstimator, **overrides: Any) -> SafeOptimizer:
    """SafeOpt: the norm is guessed and kept, global domain only."""
    estimator = norm if provides(norm, "estimate") else Fixed(norm)  # type: ignore[arg-type]
    return _paper(domain, threshold, {"norm": estimator, "cubes": None}, overrides)


def pacsbo_2024(domain: Box, threshold: float | None, **overrides: Any) -> SafeOptimizer:
    """PACSBO (2024): Hoeffding's inequality for the norm; global domain, hull of the samples, and the box between the two."""
    return _paper(domain, threshold, {"norm": Hoeffding(), "cubes": SampleHull()}, overrides)
