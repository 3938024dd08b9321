"""A trained policy in a changed environment: learn an additive action bias b without an unsafe experiment.

    a_t = clip(pi(o_t) + b, low, high),    f(b) = E[q],    safe: f(b) >= 0

q is the score of an episode (see `scoring`), the expectation is over initial states and whatever else is random in the
environment. An experiment runs a few episodes and returns their mean score, so it is f(b) plus noise.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safebo.domain import Box
from safebo.exceptions import InvalidValueError
from safebo.kernels import Matern
from safebo.norms.base import count
from safebo.problems.rl.actor import Actor
from safebo.problems.rl.environments import ENVIRONMENTS, environment, make
from safebo.problems.rl.scoring import Episode, Trajectory, score
from safebo.rkhs import checked_seed

FloatArray = NDArray[np.float64]
Params = Mapping[str, float] | ArrayLike

REFERENCE = 50
"""Episodes, of the fixed seeds 0, 1, ..., whose mean stands for the noise-free value."""


class RLProblem:
    """Maximise f(b) without an experiment where f(b) < 0. One problem per environment, see `RLProblem.names`."""

    threshold = 0.0

    def __init__(self, name: str, actor: Actor | None = None) -> None:
        self.row = environment(name)
        self.name = name
        self._env: Any = None if actor is None else _fitting(name, actor)
        self.actor = actor if actor is not None else Actor.shipped(name)
        task = self.row.task
        self.domain = Box({label: (low, high) for label, (low, high) in task.biases.items()})
        self.noise = task.noise
        self.episodes = task.episodes
        self.kernel = Matern(nu=1.5, lengthscale=task.lengthscale)
        self._values: dict[tuple[bytes, int], tuple[Episode, ...]] = {}

    @staticmethod
    def names() -> tuple[str, ...]:
        """The environments."""
        return tuple(ENVIRONMENTS)

    def __repr__(self) -> str:
        return f"RLProblem({self.name!r}, dim={self.domain.dim}, noise={self.noise:g})"

    @property
    def initial(self) -> FloatArray:
        """No bias: the policy as it was trained."""
        return np.zeros(self.domain.dim)

    def episode(self, params: Params, seed: int, share: float = 0.5) -> Episode:
        """One episode with this bias in the changed environment."""
        return score(self.name, self.trajectory(params, seed, share), self.row.task.constants)

    def trajectory(self, params: Params, seed: int, share: float = 0.5) -> Trajectory:
        """What is observed in the episode. The initial state follows from `seed`, or is `share` of the way along `starts`."""
        if self._env is None:
            self._env = make(self.name, changed=True)
        return roll_out(self._env, self.actor, self.domain.point(params), seed, self.row.task.horizon, self.start(share))

    def start(self, share: float) -> float | None:
        """The initial position at this share of its range; None where the environment draws it."""
        if self.row.starts is None:
            return None
        low, high = self.row.starts
        return low + share * (high - low)

    def measure(self, params: Params, rng: np.random.Generator) -> float:
        """One experiment: the mean score of a few episodes with seeds from `rng`; chosen initial states are stratified."""
        seeds = rng.integers(2**31, size=self.episodes)
        shares = (np.arange(self.episodes) + rng.random(self.episodes)) / self.episodes
        return float(np.mean([self.episode(params, int(s), u).score for s, u in zip(seeds, shares, strict=True)]))

    def plant(self, seed: int) -> Callable[[Params], float]:
        """A plant to experiment on: `measure` with its own generator, so that two plants of the same seed agree."""
        rng = np.random.default_rng(checked_seed(seed))
        return lambda params: self.measure(params, rng)

    def reference(self, params: Params, episodes: int = REFERENCE) -> tuple[Episode, ...]:
        """The episodes of the fixed seeds 0, 1, ...; computed once per point."""
        count(episodes, "episodes")
        point = self.domain.point(params)
        key = point.tobytes(), episodes
        if key not in self._values:
            self._values[key] = tuple(self.episode(point, seed, (seed + 0.5) / episodes) for seed in range(episodes))
        return self._values[key]

    def value(self, params: Params, episodes: int = REFERENCE) -> float:
        """f(b) up to the error of a mean over so many episodes; the same number at every call."""
        return float(np.mean([episode.score for episode in self.reference(params, episodes)]))

    def failures(self, params: Params) -> float:
        """Share of the reference episodes that failed."""
        return float(np.mean([episode.failed for episode in self.reference(params)]))

    def is_unsafe(self, params: Params, episodes: int = REFERENCE) -> bool:
        """Whether f(b) < 0."""
        return self.value(params, episodes) < self.threshold

    def measured_noise(self, params: Params | None = None, experiments: int = 20) -> float:
        """Standard deviation of repeated experiments at a point, default b = 0."""
        count(experiments, "experiments", 2)
        plant = self.plant(0)
        return float(np.std([plant(self.initial if params is None else params) for _ in range(experiments)], ddof=1))

    def landscape(self) -> dict[str, FloatArray]:
        """The committed landscape: columns of biases, `value` and `failures` on a grid (one or two dimensions)."""
        path = resources.files("safebo.problems.rl").joinpath("landscapes", f"{self.name}.csv")
        if not path.is_file():
            raise InvalidValueError(
                f"There is no landscape of {self.name!r}, which has {self.domain.dim} dimensions: landscapes exist for one and "
                "two dimensions."
            )
        rows = list(csv.DictReader(path.read_text().splitlines()))
        return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def _fitting(name: str, actor: Actor) -> Any:
    """The changed environment, if the actor has its numbers of observations and actions."""
    env = make(name, changed=True)
    needed = (*env.observation_space.shape, *env.action_space.shape)
    if needed != (actor.observations, actor.actions):
        raise InvalidValueError(
            f"{name!r} has {needed[0]} observations and {needed[1]} actions, the actor is one of {actor.observations} "
            f"observations and {actor.actions} actions."
        )
    return env


def roll_out(
    env: Any,
    actor: Actor,
    bias: FloatArray,
    seed: int,
    horizon: int,
    start: float | None = None,
    look: Callable[[int], None] = lambda step: None,
) -> Trajectory:
    """One episode of a = clip(pi(o) + bias) from the initial state of this seed, or from the position `start`.

    `look` is called before every step.
    """
    observation, _ = env.reset(seed=checked_seed(seed), options=None if start is None else {"low": start, "high": start})
    observations, rewards, ended = [observation], [], False
    for step in range(horizon):
        look(step)
        action = np.clip(actor(observation) + bias, actor.low, actor.high).astype(np.float32)
        observation, reward, ended, truncated, _ = env.step(action)
        observations.append(observation)
        rewards.append(float(reward))
        if ended or truncated:
            break
    return Trajectory(np.array(observations), np.array(rewards), bool(ended), horizon)
