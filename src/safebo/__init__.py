"""Safe Bayesian optimization that learns the RKHS norm from data.

`SafeOptimizer` suggests experiments that are certified as safe with high probability; `docs/guarantees.md` says what that means.
"""

from safebo import presets, problems
from safebo.bounds import AbbasiYadkori, MartingaleMixture, Paper
from safebo.domain import Box, Cube, DoublingCubes, LocalCubes
from safebo.exceptions import SafeboError, StopReason
from safebo.kernels import RBF, Matern
from safebo.norms import AdaptiveScenario, Fixed, Hoeffding, LSTMNorm, PosteriorScenario, Scenario
from safebo.optimizer import Best, SafeOptimizer, Trial
from safebo.outputs import Constraint
from safebo.state import State, register

__version__ = "0.1.0"

__all__ = [
    "RBF",
    "AbbasiYadkori",
    "AdaptiveScenario",
    "Best",
    "Box",
    "Constraint",
    "Cube",
    "DoublingCubes",
    "Fixed",
    "Hoeffding",
    "LSTMNorm",
    "LocalCubes",
    "MartingaleMixture",
    "Matern",
    "Paper",
    "PosteriorScenario",
    "SafeOptimizer",
    "SafeboError",
    "Scenario",
    "State",
    "StopReason",
    "Trial",
    "__version__",
    "presets",
    "problems",
    "register",
]
