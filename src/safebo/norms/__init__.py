"""Norm estimators: an upper bound B_t on the RKHS norm of the unknown function in one sub-domain."""

from safebo.norms.adaptive import AdaptiveScenario
from safebo.norms.base import NormEstimator, NormFloor, NormQuery
from safebo.norms.conditioned import PosteriorScenario
from safebo.norms.fixed import Fixed
from safebo.norms.hoeffding import Hoeffding
from safebo.norms.lstm import LSTMNorm
from safebo.norms.scenario import Scenario

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
]
