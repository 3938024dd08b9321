"""The deterministic actor of a soft actor-critic policy in numpy: an episode needs neither torch nor the trainer.

    h_0 = o,   h_i = max(0, W_i h_{i-1} + c_i),   u = clip(V h_L + d, ±clip),   a = low + (tanh(u) + 1) (high - low) / 2

All arrays are float32, as in the trained network. The clip is there only for policies trained with state-dependent exploration.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safebo.exceptions import InvalidValueError

Array = NDArray[np.float32]

POLICIES = Path(__file__).with_name("policies")
"""The trained actors that come with the package: NAME.safetensors, and settings and training curve in NAME.json."""


@dataclass(frozen=True, eq=False)
class Actor:
    """Weights W_1..W_L, V and biases c_1..c_L, d of the network, and the range of the actions."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    low: Array
    high: Array
    clip: float = float("inf")

    def __post_init__(self) -> None:
        shapes = [w.shape for w in self.weights]
        chained = all(a[0] == b[1] for a, b in itertools.pairwise(shapes))
        fitting = [b.shape for b in self.biases] == [w[:1] for w in shapes]
        if not (shapes and chained and fitting and self.low.shape == self.high.shape == shapes[-1][:1]):
            raise InvalidValueError(
                f"The layers of an actor must fit each other and its actions, got weights {shapes}, biases "
                f"{[b.shape for b in self.biases]}, actions {self.low.shape} and {self.high.shape}."
            )

    @property
    def observations(self) -> int:
        """Number of observed values."""
        return int(self.weights[0].shape[1])

    @property
    def actions(self) -> int:
        """Number of actions."""
        return int(self.low.size)

    def __call__(self, observation: NDArray[Any]) -> Array:
        """The action for one observation."""
        h = observation.astype(np.float32)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            h = np.maximum(weight @ h + bias, np.float32(0.0))
        u = np.clip(self.weights[-1] @ h + self.biases[-1], -self.clip, self.clip)
        return np.asarray(self.low + np.float32(0.5) * (np.tanh(u) + np.float32(1.0)) * (self.high - self.low), np.float32)

    def save(self, path: Path, about: Mapping[str, Any]) -> None:
        """Write the weights to `path` (safetensors) and `about` to the JSON file beside it."""
        from safetensors.numpy import save_file

        tensors = {f"weight_{i}": np.ascontiguousarray(w) for i, w in enumerate(self.weights)}
        tensors |= {f"bias_{i}": np.ascontiguousarray(b) for i, b in enumerate(self.biases)}
        tensors |= {"low": self.low, "high": self.high}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata={"clip": repr(self.clip)})
        path.with_suffix(".json").write_text(json.dumps(dict(about), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Actor:
        """The actor of a file that `save` has written."""
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            clip = float((file.metadata() or {}).get("clip", "inf"))
        layers = sum(name.startswith("weight_") for name in tensors)
        return cls(
            weights=tuple(tensors[f"weight_{i}"] for i in range(layers)),
            biases=tuple(tensors[f"bias_{i}"] for i in range(layers)),
            low=tensors["low"],
            high=tensors["high"],
            clip=clip,
        )

    @classmethod
    def shipped(cls, name: str) -> Actor:
        """The trained actor of the environment `name` that comes with the package."""
        path = POLICIES / f"{name}.safetensors"
        if not path.exists():
            raise InvalidValueError(f"No policy for {name!r} in {POLICIES}: train one with `safebo train-policy {name}`.")
        return cls.load(path)
