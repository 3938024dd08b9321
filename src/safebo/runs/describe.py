"""A run in words: what is tuned, what is guaranteed and under which assumptions, and what deserves a second look."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from safebo import notices
from safebo.domain import Cube, default_cubes
from safebo.exceptions import SafeboWarning
from safebo.norms import AdaptiveScenario, Fixed, Hoeffding, PosteriorScenario, Scenario, default_norm
from safebo.optimizer import SafeOptimizer
from safebo.outputs import OBJECTIVE, Output, guarantee
from safebo.runs.plant_spec import KINDS
from safebo.runs.presence import missing_parts
from safebo.state import Settings


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
    if notices.covers_both(output.norm):
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)  # they are not about these settings
        usual = SafeOptimizer(settings.domain, 0.0, kernel=first.kernel, **common).state.settings
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
    if settings.locality != default_cubes(notices.shortest(settings), settings.domain.dim):
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


def _show(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def cautions(settings: Settings, run: Mapping[str, Any], *, begun: bool = False) -> list[str]:
    """What deserves a second look before anything moves; `run` are the fields of `RunConfig`; begun: it has measurements."""
    found = [caution.text for caution in notices.cautions(settings)]
    plant = run.get("plant", {})
    kind = plant.get("type", "manual")
    if not plant.get("start") and not begun:
        found.append("There is no [start]: import or tell at least one safe measurement before the first experiment.")
    if not begun:
        found += missing_parts(plant)
    if run.get("on_violation") == "continue":
        found.append("on_violation = 'continue': the run goes on after a measurement outside a limit.")
    if kind in ("python", "command") and "stop" not in plant:
        found.append(f"The {kind} plant has no stop: a hang or a crash cannot be made harmless from here.")
    return list(dict.fromkeys(found))


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
