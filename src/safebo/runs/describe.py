"""A run in words: what is tuned, what is guaranteed and under which assumptions, and what deserves a second look."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from safebo.bounds import MartingaleMixture, Paper
from safebo.domain import Cube, DoublingCubes, GlobalDomain, LocalCubes, default_cubes
from safebo.kernels import RBF
from safebo.norms import AdaptiveScenario, Fixed, Hoeffding, NormEstimator, PosteriorScenario, Scenario, default_norm
from safebo.optimizer import SafeOptimizer
from safebo.outputs import OBJECTIVE, Output, guarantee
from safebo.runs.plant_spec import KINDS
from safebo.runs.presence import missing_parts
from safebo.state import Settings

COARSE = 0.006
"""Lengthscales between the points of the finest grid beyond which first steps may be missed (0.008 ended 6 of 40 runs in 3-D)."""


def with_unit(text: str, unit: str | None) -> str:
    """A value and its unit."""
    return f"{text} {unit}" if unit else text


def limits(output: Output, unit: str | None = None) -> str:
    """The limits of an output: "0 to 1.5 N m", "at least 0", "no limit"."""
    low, high = output.lower_limit, output.upper_limit
    if low is not None and high is not None:
        return with_unit(f"{low:g} to {high:g}", unit)
    if low is not None:
        return with_unit(f"at least {low:g}", unit)
    return "no limit" if high is None else with_unit(f"at most {high:g}", unit)


def promise(settings: Settings) -> list[str]:
    """What a certificate promises, and what it does not, in sentences."""
    given = guarantee(settings.outputs)
    doubt = f"With confidence {percent(given.confidence)}, an" if given.confidence < 1.0 else "An"
    limited = [o.name for o in settings.outputs if o.is_limit]
    inside = (
        f"{limited[0]} inside its limit"
        if len(limited) == 1
        else f"{', '.join(limited[:-1])} and {limited[-1]} inside their limits"
    )
    first = f"{doubt} experiment that safebo proposes keeps {inside} with probability at least {percent(given.probability)}."
    second = (
        "This is the promise of one certificate. No proof covers a whole run: the probability is not spent over steps and "
        "sub-domains (docs/guarantees.md has the measured rates)."
    )
    return [first, second]


def assumptions(settings: Settings) -> list[str]:
    """What the promise rests on."""
    limited = [o for o in settings.outputs if o.is_limit]
    kernels = {o.name: kernel_text(o, settings.domain.names) for o in limited}
    noises = {o.name: f"{o.noise:g}" for o in limited}
    found = [
        f"the function fits the kernel: {_each(kernels)}; a lengthscale that is too long is unsafe",
        f"the noise of a measurement is no larger than stated: {_each(noises)}",
        "the parameters of the start are safe",
        "the plant does not change during the run",
    ]
    norms = {o.name: _norm(o) for o in limited}
    found.append(f"the norm: {_each(norms)}")
    return found


def _each(texts: Mapping[str, str]) -> str:
    """One text if all agree, else one per output."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def kernel_text(output: Output, names: Iterable[str]) -> str:
    """A kernel in words."""
    kernel = output.kernel
    family = {"matern12": "Matern 1/2", "matern32": "Matern 3/2", "matern52": "Matern 5/2", "rbf": "RBF"}[kernel.family]
    scale = kernel.lengthscale
    text = f"{scale:g}" if isinstance(scale, float) else ", ".join(f"{n} {s:g}" for n, s in zip(names, scale, strict=False))
    size = f", output scale {kernel.outputscale:g}" if kernel.outputscale != 1.0 else ""
    return f"{family}, lengthscale {text} of the range{size}"


def _norm(output: Output) -> str:
    norm = output.norm
    if _both(output.norm):
        return (
            "f is a draw from random functions, or from a Gaussian process in the kernel's space, with a scale that is learned "
            "from the data (adaptive, not below posterior)"
        )
    if isinstance(norm, AdaptiveScenario):
        return "f is a draw from random functions whose scale is learned from the data (adaptive)"
    if isinstance(norm, PosteriorScenario):
        return "f is a draw from a Gaussian process in the kernel's space whose scale is learned from the data (posterior)"
    if isinstance(norm, Scenario):
        return f"f is a draw like the random functions of the paper, coefficients within {norm.alpha_bar:g} (scenario)"
    if isinstance(norm, Fixed):
        return f"the norm of f is at most {norm.value:g}: your guess, nobody else's (fixed)"
    if isinstance(norm, Hoeffding):
        return "the norm of f is at most the expected norm of random functions (hoeffding)"
    return repr(norm)


def percent(probability: float) -> str:
    """97 %, 99.9 %: rounded down, so that nothing is promised that does not hold."""
    digits = 2 if probability > 0.999 else 1
    scale = 10.0**digits
    return f"{math.floor(100.0 * probability * scale + 1e-6) / scale:g} %"


@dataclass(frozen=True)
class Difference:
    """A setting that is not the default."""

    name: str
    value: str
    default: str


def differences(settings: Settings) -> list[Difference]:
    """The settings of the algorithm that differ from the defaults of `SafeOptimizer`."""
    first = settings.outputs[0]
    given = guarantee(settings.outputs)
    common: dict[str, Any] = {"noise": first.noise, "seed": settings.seed, "screening": settings.screening}
    usual = SafeOptimizer(settings.domain, 0.0, kernel=_short(first), **common).state.settings
    found = []
    for output in settings.outputs:
        prefix = "" if output.name == OBJECTIVE else f"{output.name}: "
        for name in ("norm", "bound", "min_width"):
            mine, default = getattr(output, name), getattr(usual.outputs[0], name)
            default = default_norm(output.kernel, settings.domain.dim) if name == "norm" else default
            if mine != default:
                found.append(Difference(prefix + name, _show(mine), _show(default)))
    delta = sum(share[1] for share in given.shares.values())
    if abs(delta - usual.outputs[0].delta) > 1e-12:
        found.append(Difference("delta", f"{delta:g}", f"{usual.outputs[0].delta:g}"))
    if settings.locality != default_cubes(_shortest(settings), settings.domain.dim):
        found.append(Difference("cubes", _show(settings.locality), "auto"))
    for name in (f.name for f in fields(Settings) if f.name not in ("domain", "outputs", "locality", "seed")):
        mine, default = getattr(settings, name), None if name == "screening" else getattr(usual, name)
        if mine != default:
            found.append(
                Difference(
                    {"shape": "points_per_axis", "margin": "refutation_margin"}.get(name, name), _show(mine), _show(default)
                )
            )
    return found


def _short(output: Output) -> Any:
    """The output's kernel, or None where its lengthscales would draw a warning that was given already."""
    scale = output.kernel.lengthscale
    return output.kernel if max(scale if isinstance(scale, tuple) else (scale,)) <= 1.0 else None


def _show(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def cautions(settings: Settings, run: Mapping[str, Any], *, begun: bool = False) -> list[str]:
    """What deserves a second look before anything moves; `run` are the fields of `RunConfig`; begun: it has measurements."""
    found = []
    plant = run.get("plant", {})
    kind = plant.get("type", "manual")
    spacing = _finest(settings)
    if spacing > COARSE:
        found.append(
            f"The finest grid has {spacing:.2g} lengthscales between its points; the first steps may be missed (NO_CANDIDATES). "
            f"Use smaller cubes, such as cubes = {{ type = 'doubling', n = 9, smallest = {_shortest(settings) / 64.0:.2g} }}, or "
            "more points_per_axis."
        )
    for output in settings.outputs:
        alone = isinstance(output.norm, AdaptiveScenario) and not _both(output.norm)
        if alone and isinstance(output.kernel, RBF) and not isinstance(settings.locality, GlobalDomain):
            found.append(
                f"With the RBF kernel of {output.name!r} this norm bound was too small for a third of the certificates that "
                "were looked at, by up to 40 %: use a Matern kernel, or, with up to three parameters, the default norm."
            )
        elif (
            alone and _both(default_norm(output.kernel, settings.domain.dim)) and not isinstance(settings.locality, GlobalDomain)
        ):
            found.append(
                f"The norm bound of {output.name!r} has no floor = 'posterior': with two or three parameters some bound was too "
                "small in a third of the runs that were looked at, with the floor in 4 %. Leave norm out, or write the floor."
            )
        if isinstance(output.norm, PosteriorScenario) and settings.domain.dim == 3 and 4.0 * _shortest(settings) < 1.0:
            found.append(
                "norm = 'posterior' alone is too small for sub-domains of many lengthscales with three parameters, the whole "
                f"domain among them (by 20 % at ten lengthscales): leave out the norm of {output.name!r}, or use it as a floor."
            )
        if output.min_width < output.noise:
            found.append(
                f"min_width {output.min_width:g} of {output.name!r} is below its noise {output.noise:g}: points would be "
                "repeated many times before they count as known."
            )
        for limit in (output.lower_limit, output.upper_limit):
            if limit is not None and abs(limit) > 10.0 * math.sqrt(output.kernel.outputscale):
                found.append(
                    f"The limit {limit:g} of {output.name!r} is far from values of order 1: subtract an offset and divide by the "
                    "typical variation."
                )
        if (
            isinstance(output.norm, Scenario)
            and isinstance(output.bound, MartingaleMixture)
            and not isinstance(settings.locality, GlobalDomain)
        ):
            found.append(
                f"{output.name!r} combines the paper's norm bound in local cubes with the tightest confidence bound, which has "
                "no slack for a norm that is too small: use norm = 'adaptive', or bound = 'paper'."
            )
        if isinstance(output.bound, Paper):
            found.append(f"{output.name!r} uses the confidence bound as printed in the paper, which no theorem covers.")
    if not settings.falsify:
        found.append("falsify is off: norm bounds that the data refute are kept.")
    if settings.safe_set != "confidence":
        found.append(
            f"safe_set = {settings.safe_set!r} is more sensitive to a norm that is a little too small than 'confidence'."
        )
    if not plant.get("start") and not begun:
        found.append("There is no [start]: import or tell at least one safe measurement before the first experiment.")
    if not begun:
        found += missing_parts(plant)
    if run.get("on_violation") == "continue":
        found.append("on_violation = 'continue': the run goes on after a measurement outside a limit.")
    if kind in ("python", "command") and "stop" not in plant:
        found.append(f"The {kind} plant has no stop: a hang or a crash cannot be made harmless from here.")
    return list(dict.fromkeys(found))


def _both(norm: NormEstimator) -> bool:
    """Whether the norm is not below what all samples together say."""
    return isinstance(norm, AdaptiveScenario) and isinstance(norm.floor, PosteriorScenario)


def _shortest(settings: Settings) -> float:
    """The shortest lengthscale of all outputs."""
    return min(float(output.kernel.lengthscales(settings.domain.dim).min()) for output in settings.outputs)


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


def plant_text(plant: Mapping[str, Any]) -> str:
    """A plant in one line."""
    kind = plant.get("type", "manual")
    what = plant.get("callable") or " ".join(plant.get("command", ()))
    if kind == "socket":
        what = f"{plant['host']}:{plant['port']}"
    times = f", time-out {plant['timeout']:g} s" if "timeout" in plant else ""
    return f"{kind}: {what or KINDS[kind]}{times}"


def cube_text(cube: Cube) -> str:
    """A sub-domain in the unit cube."""
    return " x ".join(f"[{a:.3g}, {b:.3g}]" for a, b in zip(cube.lower, cube.upper, strict=True))
