"""Norm estimators: an upper bound B_t on the RKHS norm of the unknown function in one sub-domain."""

from safebo.kernels import RBF, StationaryKernel
from safebo.norms.adaptive import AdaptiveScenario
from safebo.norms.base import NormEstimator, NormFloor, NormQuery
from safebo.norms.conditioned import PosteriorScenario
from safebo.norms.fixed import Fixed
from safebo.norms.hoeffding import Hoeffding
from safebo.norms.lstm import LSTMNorm
from safebo.norms.scenario import Scenario


def default_norm(kernel: StationaryKernel, dim: int) -> NormEstimator:
    """What `SafeOptimizer` uses: `AdaptiveScenario`, not below `PosteriorScenario` in 2-D and 3-D, nor in 1-D with RBF.

    There the two together were measured (docs/guarantees.md): the larger bound holds if either family contains the function.
    """
    served = (dim > 1 or isinstance(kernel, RBF)) and PosteriorScenario.serves(kernel, dim)
    return AdaptiveScenario(floor=PosteriorScenario()) if served else AdaptiveScenario()


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
