"""What to show in a figure of a state: the options that one- and two-dimensional figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as entry

from safebo.exceptions import InvalidValueError
from safebo.optimizer import SafeOptimizer, Trial
from safebo.report.style import SETS

FIELDS = {
    "mean": "posterior mean",
    "lower": "lower bound",
    "upper": "upper bound",
    "width": "width of the interval",
    "margin": "certified distance to the limits",
}


def named(name: str, units: Mapping[str, str]) -> str:
    """A parameter or output with its unit."""
    return f"{name} [{units[name]}]" if units.get(name) else name


@dataclass(frozen=True)
class Options:
    """Validated options; `plot_state` documents them."""

    output: str | None = None
    field: str = "mean"
    sets: Sequence[str] = ("S", "M", "G")
    cubes: bool | str = False
    next_trial: bool | Trial = True
    best: bool = True
    points: int | None = None
    limits: tuple[float, float] | None = None
    title: str | None = None
    legend: bool | None = None
    units: Mapping[str, str] = entry(default_factory=dict)

    def trial(self, opt: SafeOptimizer) -> Trial | None:
        """The next trial that is shown, if any."""
        if isinstance(self.next_trial, bool):
            return opt.ask() if self.next_trial else None
        return self.next_trial

    def named(self, name: str) -> str:
        """A parameter or output with its unit."""
        return named(name, self.units)

    def __post_init__(self) -> None:
        if self.field not in FIELDS:
            raise InvalidValueError(f"field must be one of {list(FIELDS)}, got {self.field!r}.")
        unknown = [s for s in self.sets if s not in SETS]
        if unknown:
            raise InvalidValueError(f"sets takes {list(SETS)}, got {unknown}.")
        if self.cubes not in (True, False, "next"):
            raise InvalidValueError(f'cubes must be True, False or "next", got {self.cubes!r}.')
        if self.points is not None and self.points < 2:
            raise InvalidValueError(f"points must be at least 2 per axis, got {self.points!r}.")
        if self.limits is not None and not self.limits[0] < self.limits[1]:
            raise InvalidValueError(f"limits must be (low, high) with low < high, got {self.limits!r}.")
