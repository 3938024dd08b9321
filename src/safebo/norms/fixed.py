"""A guessed norm (SafeOpt)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from safebo.exceptions import InvalidValueError
from safebo.norms.base import NormQuery


@dataclass(frozen=True)
class Fixed:
    """B_t = value, as SafeOpt assumes it. The promise is the user's: gamma = kappa = 0 only if the guess is right."""

    value: float

    def __post_init__(self) -> None:
        number = self.value
        valid = isinstance(number, (int, float, np.integer, np.floating)) and not isinstance(number, bool)
        if not (valid and math.isfinite(number) and number > 0.0):
            raise InvalidValueError(f"Fixed takes a positive, finite norm, got {self.value!r}.")
        object.__setattr__(self, "value", float(number))

    @property
    def gamma(self) -> float:
        """0: the norm is assumed."""
        return 0.0

    @property
    def kappa(self) -> float:
        """0: the norm is assumed."""
        return 0.0

    def estimate(self, query: NormQuery) -> float:
        """The guess."""
        return self.value
