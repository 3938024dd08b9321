"""The tuning problem: two gains of a balancing controller, unsafe where the pendulum falls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safebo.domain import Box
from safebo.kernels import Matern, StationaryKernel
from safebo.problems.furuta.environment import FurutaPendulum
from safebo.problems.furuta.experiment import Experiment, run_experiment
from safebo.problems.furuta.parameters import NOMINAL, PERTURBED, FurutaParameters
from safebo.rkhs import checked_seed

FloatArray = NDArray[np.float64]
Params = Mapping[str, float] | ArrayLike

START = (0.239, 0.424)
"""The paper's initial safe parameters."""

DISTURBANCE = 1.5e-4
"""Standard deviation of the random torque on the pendulum, N m: 1 % of its weight's largest torque."""

NOISE = 0.07
"""Largest standard deviation of the reward between experiments with the same safe parameters: 0.07 near the best, 0.05 at the
start."""

VALUE_SEEDS = tuple(range(8))


class FurutaProblem:
    """Maximise the reward of an experiment over a in [0, 1]^2 without dropping the pendulum (reward below 0).

    >>> problem = FurutaProblem.perturbed()
    >>> problem.measure({"a1": 0.239, "a2": 0.424}, np.random.default_rng(0))
    """

    threshold = 0.0
    noise = NOISE

    def __init__(self, parameters: FurutaParameters = NOMINAL, *, disturbance: float = DISTURBANCE) -> None:
        self.parameters = parameters
        self.domain = Box({"a1": (0.0, 1.0), "a2": (0.0, 1.0)})
        self.kernel: StationaryKernel = Matern(nu=1.5, lengthscale=0.2)
        self.initial = np.array(START)
        self.initial.flags.writeable = False
        self._environment = FurutaPendulum(parameters, disturbance=disturbance)

    @classmethod
    def nominal(cls) -> FurutaProblem:
        """The simulation that the start was found in."""
        return cls(NOMINAL)

    @classmethod
    def perturbed(cls) -> FurutaProblem:
        """The "real" device, which differs from the simulation in mass, friction and delay."""
        return cls(PERTURBED)

    def experiment(self, params: Params, seed: int) -> Experiment:
        """One experiment with everything that was recorded; the same seed gives the same experiment."""
        a1, a2 = self.domain.point(params)
        return run_experiment(self._environment, (float(a1), float(a2)), START, checked_seed(seed))

    def measure(self, params: Params, rng: np.random.Generator) -> float:
        """The reward of one experiment, whose tilt, tap and disturbances are drawn from `rng`."""
        return self.experiment(params, int(rng.integers(2**31))).reward

    def plant(self, seed: int) -> Callable[[Params], float]:
        """A plant to experiment on: `measure` with its own generator, so that two plants of the same seed agree."""
        rng = np.random.default_rng(checked_seed(seed))
        return lambda params: self.measure(params, rng)

    def value(self, params: Params) -> float:
        """The reward without noise: the mean over experiments with eight fixed seeds."""
        return float(np.mean([self.experiment(params, seed).reward for seed in VALUE_SEEDS]))

    def is_safe(self, params: Params) -> bool:
        """Whether the value is not below the threshold."""
        return self.value(params) >= self.threshold

    @cached_property
    def initial_value(self) -> float:
        """Value of the start."""
        return self.value(self.initial)
