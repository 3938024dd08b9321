"""Warnings to the person at the bench: lengthscales and values off the scale that the kernel assumes, and refuted norms."""

from __future__ import annotations

import warnings

import numpy as np

from safebo.exceptions import NoGuaranteeWarning, NormRefutedWarning, ScaleWarning
from safebo.intervals import Refutation
from safebo.state import Settings, State

LARGEST_SCALE = 10.0
"""A first measurement or limit further away than this many sqrt(outputscale) draws a `ScaleWarning`."""


def check_lengthscales(settings: Settings) -> None:
    """Warn about a lengthscale beyond the whole range of a parameter: as a rule it was meant in the parameter's unit."""
    for output in settings.outputs:
        for name, value in zip(settings.domain.names, output.kernel.lengthscales(settings.domain.dim), strict=True):
            if value > 1.0:
                warnings.warn(
                    f"The lengthscale {value:g} of {output.name!r} along {name!r} is longer than its whole range. They are "
                    "fractions of a parameter's range, not in its unit; with one that is too long, everything looks safe.",
                    ScaleWarning,
                    stacklevel=3,
                )


def check_norms(settings: Settings) -> None:
    """Warn about an estimate in the place of a bound: certificates made with it hold with probability 0, as far as is known."""
    for output in settings.outputs:
        if output.norm.gamma >= 1.0:
            warnings.warn(
                f"The norm of {output.name!r} comes from {output.norm!r}, which is an estimate and not a bound: no certificate "
                "made with it is worth anything. Use it as screening=... or as the floor of a bound, "
                f"AdaptiveScenario(floor={output.norm!r}).",
                NoGuaranteeWarning,
                stacklevel=3,
            )


def check_scale(state: State) -> None:
    """Warn if the first measurement is far from the scale that the norm estimators assume."""
    for output, value in zip(state.outputs, state.samples[0].values, strict=True):
        limits = [limit for limit in (output.lower_limit, output.upper_limit) if limit is not None]
        size = max([abs(value), *(abs(value - limit) for limit in limits)]) / np.sqrt(output.kernel.outputscale)
        if size > LARGEST_SCALE:
            warnings.warn(
                f"{output.name!r} is not on the scale of its kernel: the first measurement {value:g}, or its distance to a "
                f"limit, is {size:.0f} times sqrt(outputscale). The random functions that bound its norm do not resemble it "
                "then. Subtract an offset and divide by the typical variation, so that values are of order 1.",
                ScaleWarning,
                stacklevel=4,
            )


def warn_refuted(refutations: tuple[Refutation, ...]) -> None:
    """One warning per step, about the largest correction."""
    if not refutations:
        return
    worst = max(refutations, key=lambda r: r.raised_to / r.norm)
    raised = (
        f"the bound of {worst.output!r} was raised from {worst.norm:.4g} to {worst.raised_to:.4g}"
        if worst.raised_to > worst.norm
        else f"the bound {worst.norm:.4g} of {worst.output!r} was kept, since falsify is off"
    )
    warnings.warn(
        f"The data refute the norm bound of {len(refutations)} sub-domain(s); {raised}, and earlier intervals there dropped. "
        "If this repeats, the function is rougher than the kernel, alpha_bar or a guessed norm allow.",
        NormRefutedWarning,
        stacklevel=5,
    )
