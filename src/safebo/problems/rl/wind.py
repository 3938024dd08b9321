"""A wind that blows one way. Imported only where Gymnasium is known to be there."""

from __future__ import annotations

from typing import Any

import gymnasium

STEADY = 63
"""The lunar lander's wind at step i is tanh(sin(0.02 i) + sin(0.01 pi i)) times its power; at i = 63 that is 0.95, its largest."""


class SteadyWind(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The lunar lander with its wind held at the strongest moment: the same force at every step and in every episode."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Reset; the environment takes its first step on its own, with whatever wind it has drawn."""
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step in the steady wind."""
        self.unwrapped.wind_idx = STEADY  # type: ignore[attr-defined]
        return self.env.step(action)
