"""The Furuta pendulum: simulation, controller and tuning problem; needs the extra `furuta`.

Importing this package registers the Gymnasium environment `safebo/FurutaPendulum-v0`.
"""

from safebo.exceptions import MissingExtraError
from safebo.extras import how_to_install

try:
    import gymnasium
    import mujoco  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f"The Furuta pendulum needs gymnasium and mujoco ({error}): {how_to_install('furuta')}.") from error

from safebo.problems.furuta.controller import Controller, Phase
from safebo.problems.furuta.environment import FurutaPendulum
from safebo.problems.furuta.experiment import Experiment
from safebo.problems.furuta.parameters import NOMINAL, PERTURBED, FurutaParameters
from safebo.problems.furuta.problem import START, FurutaProblem

ENVIRONMENT = "safebo/FurutaPendulum-v0"

if ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(ENVIRONMENT, "safebo.problems.furuta.environment:FurutaPendulum", max_episode_steps=2000)

__all__ = [
    "ENVIRONMENT",
    "NOMINAL",
    "PERTURBED",
    "START",
    "Controller",
    "Experiment",
    "FurutaParameters",
    "FurutaPendulum",
    "FurutaProblem",
    "Phase",
]
