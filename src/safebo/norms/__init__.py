"""Norm estimators: an upper bound B_t on the RKHS norm of the unknown function in one sub-domain."""

from safebo.kernels import StationaryKernel
from safebo.norms.adaptive import AdaptiveScenario
from safebo.norms.base import NormEstimator, NormFloor, NormQuery
from safebo.norms.conditioned import PosteriorScenario
from safebo.norms.fixed import Fixed
from safebo.norms.hoeffding import Hoeffding
from safebo.norms.lstm import LSTMNorm
from safebo.norms.scenario import Scenario


def default_norm(kernel: StationaryKernel, dim: int) -> NormEstimator:
    """What `SafeOptimizer` uses: `AdaptiveScenario` with the floor that goes with this kernel and dimension."""
    return AdaptiveScenario().resolved(kernel, dim)


__all__ = [
    "AdaptiveScenario",
    "Fixed",
    "Hoeffding",
    "LSTMNorm",
    "NormEstimator",
    "NormFloor",
    "NormQuery",
    "PosteriorScenario",
    "Scenario",
    "default_norm",
]
