"""A wind that blows one way. Imported only where Gymnasium is known to be there."""

from __future__ import annotations

from typing import Any

import gymnasium

STEADY = 63
"""The lunar lander's wind at step i is its power times tanh(sin(0.02 i) + sin(0.01 pi i)), 0.954 at i = 63; the largest
within Gymnasium's range of first steps, -9999 <= i < 9999, is 0.964 at i = -550."""


class SteadyWind(gymnasium.Wrapper):  # type: ignore[misc]
    """The lunar lander with its wind held close to its strongest: the same force at every step and in every episode."""

    def step(self, action: Any) -> Any:
        """One step in the steady wind."""
        self.unwrapped.wind_idx = STEADY
        return self.env.step(action)
