"""A guessed norm (SafeOpt)."""

from __future__ import annotations

from dataclasses import dataclass

from safebo.norms.base import NormQuery, positive


@dataclass(frozen=True)
class Fixed:
    """B_t = value, as SafeOpt assumes it. The promise is the user's: gamma = kappa = 0 only if the guess is right."""

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", positive(self.value, "The norm of Fixed"))

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
