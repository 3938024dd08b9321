"""What deserves a second look before anything moves, and what is warned about while it does.

The cautions of settings are one list for every door: warnings where an optimizer is built, lines of `safebo check`, and part of
the server's answer to whoever creates a run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from safebo.bounds import MartingaleMixture, Paper
from safebo.domain import DoublingCubes, GlobalDomain, LocalCubes
from safebo.exceptions import NoGuaranteeWarning, NormRefutedWarning, SafeboWarning, ScaleWarning, SettingsWarning
from safebo.intervals import Refutation
from safebo.kernels import RBF
from safebo.norms import AdaptiveScenario, NormEstimator, PosteriorScenario, Scenario, default_norm
from safebo.outputs import Output
from safebo.state import Settings, State

LARGEST_SCALE = 10.0
"""A measurement or limit further away than this many sqrt(outputscale) draws a `ScaleWarning`."""

COARSE = 0.006
"""Lengthscales between the points of the finest grid beyond which first steps may be missed (0.008 ended 6 of 40 runs in 3-D)."""


# -- settings ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Caution:
    """A sentence about settings, and the class of its warning."""

    text: str
    category: type[SafeboWarning]


def cautions(settings: Settings) -> list[Caution]:
    """What deserves a second look, once each, whoever chose it."""
    found = [*_lengthscales(settings), *_grid(settings)]
    for output in settings.outputs:
        found += [*_norm(output, settings), *_scale(output), *_bound(output)]
    if not settings.falsify:
        found.append(Caution("falsify is off: norm bounds that the data refute are kept.", SettingsWarning))
    if settings.safe_set != "confidence":
        text = f"safe_set = {settings.safe_set!r} is more sensitive to a norm that is a little too small than 'confidence'."
        found.append(Caution(text, SettingsWarning))
    return list(dict.fromkeys(found))


def warn_cautions(settings: Settings) -> None:
    """The same as warnings to whoever builds the optimizer."""
    for caution in cautions(settings):
        warnings.warn(caution.text, caution.category, stacklevel=3)


def shortest(settings: Settings) -> float:
    """The shortest lengthscale of all outputs."""
    return min(float(output.kernel.lengthscales(settings.domain.dim).min()) for output in settings.outputs)


def covers_both(norm: NormEstimator) -> bool:
    """Whether the norm is not below what all samples together say."""
    return isinstance(norm, AdaptiveScenario) and isinstance(norm.floor, PosteriorScenario)


def _lengthscales(settings: Settings) -> Iterator[Caution]:
    """A lengthscale beyond the whole range of a parameter: as a rule it was meant in the parameter's unit."""
    for output in settings.outputs:
        for name, value in zip(settings.domain.names, output.kernel.lengthscales(settings.domain.dim), strict=True):
            if value > 1.0:
                text = (
                    f"The lengthscale {value:g} of {output.name!r} along {name!r} is longer than its whole range. They are "
                    "fractions of a parameter's range, not in its unit; with one that is too long, everything looks safe."
                )
                yield Caution(text, ScaleWarning)


def _grid(settings: Settings) -> Iterator[Caution]:
    spacing = _finest(settings)
    if spacing > COARSE:
        text = (
            f"The finest grid has {spacing:.2g} lengthscales between its points; the first steps may be missed (NO_CANDIDATES). "
            f"Use smaller cubes, such as doubling ones with n = 9 and smallest = {shortest(settings) / 64.0:.2g}, or more "
            "points_per_axis."
        )
        yield Caution(text, SettingsWarning)


def _norm(output: Output, settings: Settings) -> Iterator[Caution]:
    """Estimates in the place of bounds, and bounds that were too small where they have been looked at."""
    name, norm, dim = output.name, output.norm, settings.domain.dim
    usual = covers_both(default_norm(output.kernel, dim))
    if norm.gamma >= 1.0:  # as far as is known, certificates made with it hold with probability 0
        floor = f"PosteriorScenario(floor={norm!r})" if usual else f"{norm!r}"
        text = (
            f"The norm of {name!r} comes from {norm!r}, which is an estimate and not a bound: no certificate made with it is "
            f"worth anything. Use it as screening=... or as the floor of a bound, AdaptiveScenario(floor={floor})."
        )
        yield Caution(text, NoGuaranteeWarning)
    if isinstance(norm, PosteriorScenario) and dim == 3 and 4.0 * shortest(settings) < 1.0:
        text = (
            "norm = 'posterior' alone is too small for sub-domains of many lengthscales with three parameters, the whole domain "
            f"among them (by 20 % at ten lengthscales): leave out the norm of {name!r}, or use it as a floor."
        )
        yield Caution(text, NoGuaranteeWarning)
    if isinstance(settings.locality, GlobalDomain):
        return
    alone = isinstance(norm, AdaptiveScenario) and not covers_both(norm)
    if alone and isinstance(output.kernel, RBF):
        text = (
            f"With the RBF kernel of {name!r} this norm bound was too small for a third of the certificates that were looked at, "
            "by up to 40 %: use a Matern kernel, or, with up to three parameters, the default floor (floor = 'auto')."
        )
        yield Caution(text, NoGuaranteeWarning)
    elif alone and usual:
        text = (
            f"The norm bound of {name!r} has no floor PosteriorScenario(): with two or three parameters some bound was too small "
            "in a third of the runs that were looked at, with the floor in 4 %. Leave floor out, the default is 'auto'."
        )
        yield Caution(text, NoGuaranteeWarning)
    if isinstance(norm, Scenario) and isinstance(output.bound, MartingaleMixture):
        text = (
            f"{name!r} combines the paper's norm bound in local cubes with the tightest confidence bound, which has no slack for "
            "a norm that is too small: use norm = 'adaptive', or bound = 'paper'."
        )
        yield Caution(text, NoGuaranteeWarning)


def _scale(output: Output) -> Iterator[Caution]:
    if output.min_width < output.noise:
        text = (
            f"min_width {output.min_width:g} of {output.name!r} is below its noise {output.noise:g}: points would be repeated "
            "many times before they count as known."
        )
        yield Caution(text, SettingsWarning)
    for limit in (output.lower_limit, output.upper_limit):
        if limit is not None and abs(limit) > LARGEST_SCALE * math.sqrt(output.kernel.outputscale):
            text = (
                f"The limit {limit:g} of {output.name!r} is far from values of order 1: subtract an offset and divide by the "
                "typical variation."
            )
            yield Caution(text, ScaleWarning)


def _bound(output: Output) -> Iterator[Caution]:
    if isinstance(output.bound, Paper):
        text = f"{output.name!r} uses the confidence bound as printed in the paper, which no theorem covers."
        yield Caution(text, SettingsWarning)


def _finest(settings: Settings) -> float:
    """Distance of neighbouring grid points in the smallest sub-domain, in lengthscales of a limit, worst axis."""
    locality, dim = settings.locality, settings.domain.dim
    edge = 1.0
    if isinstance(locality, (DoublingCubes, LocalCubes)) and locality.n > 0:
        edge = min(locality.smallest if isinstance(locality, DoublingCubes) else locality.delta, 1.0)
    widths = [edge / (points - 1) for points in settings.shape]
    return max(
        float(max(w / s for w, s in zip(widths, o.kernel.lengthscales(dim), strict=True))) for o in settings.outputs if o.is_limit
    )


# -- measurements ------------------------------------------------------------------------------------------------------------


def scale_cautions(state: State, told: int, last: int) -> list[Caution]:
    """Outputs whose last `told` measurements are further from the scale that the norm estimators assume than any before.

    last: the number of the last one, as people count them.
    Once per output, and again at twice the distance: a rig that is off the scale is not told so at every experiment.
    """
    found = []
    for index, output in enumerate(state.outputs if told else ()):
        sizes = [_size(output, sample.values[index]) for sample in state.samples]
        worst = max(range(state.step - told, state.step), key=sizes.__getitem__)
        known = max(sizes[: state.step - told], default=0.0)
        if sizes[worst] > LARGEST_SCALE and _doublings(sizes[worst]) > _doublings(known):
            text = (
                f"{output.name!r} is not on the scale of its kernel: measurement {last - state.step + worst + 1}, "
                f"{state.samples[worst].values[index]:g}, or its distance to a limit, is {sizes[worst]:.0f} times "
                "sqrt(outputscale). The random functions that bound its norm do not resemble it then. Subtract an offset and "
                "divide by the typical variation, so that values are of order 1."
            )
            found.append(Caution(text, ScaleWarning))
    return found


def _size(output: Output, value: float) -> float:
    """How far a value is from 0 and from the limits at most, in units of sqrt(outputscale)."""
    limits = [limit for limit in (output.lower_limit, output.upper_limit) if limit is not None]
    return max([abs(value), *(abs(value - limit) for limit in limits)]) / math.sqrt(output.kernel.outputscale)


def _doublings(size: float) -> int:
    """How often `LARGEST_SCALE` was doubled to reach a size; -1 within it."""
    return math.floor(math.log2(size / LARGEST_SCALE)) if size > LARGEST_SCALE else -1


def check_scale(state: State, told: int, last: int) -> None:
    """Warn about the last `told` measurements where they are far from the scale that the norm estimators assume."""
    for caution in scale_cautions(state, told, last):
        warnings.warn(caution.text, caution.category, stacklevel=4)


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
