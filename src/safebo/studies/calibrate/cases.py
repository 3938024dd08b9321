"""What the calibration study runs: families of problems, methods, and which of them meet in which part."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from safebo.bounds import AbbasiYadkori, ConfidenceBound, MartingaleMixture, Paper
from safebo.domain import Box, LocalCubes
from safebo.exceptions import InvalidValueError, SafeboWarning
from safebo.kernels import RBF, Matern, StationaryKernel
from safebo.norms import AdaptiveScenario, Fixed, Hoeffding, NormEstimator, PosteriorScenario, Scenario
from safebo.optimizer import SafeOptimizer
from safebo.problems import RKHSProblem
from safebo.problems.synthetic import reachable_argmax
from safebo.studies.common import plan_constants


@dataclass(frozen=True)
class Family:
    """Random problems of one kind. The model's kernel is the true one unless it says otherwise."""

    dim: int
    kernel: StationaryKernel
    norms: tuple[float, float]  # ||f|| is uniform in it
    model: StationaryKernel | None = None
    noise: float = 0.01
    quantile: float = 0.3  # the threshold's quantile of f
    shape: str = "rkhs"  # or "kink", "step", "cliff": outside of every assumption
    heavy_tails: bool = False
    assumptions: bool = True  # whether f is a draw of the family that the guarantee assumes, with this kernel and noise
    experiments: int = 30

    @property
    def has_local_norms(self) -> bool:
        """Whether local norms can be computed: f is in the model's space, and a grid shows its norm."""
        return self.dim <= 3 and self.model is None and self.shape == "rkhs"

    def problem(self, seed: int) -> RKHSProblem:
        """The problem of this seed."""
        norm = float(np.random.default_rng((seed, 1)).uniform(*self.norms))
        start = (self.quantile + 0.1, self.quantile + 0.2)
        problem = RKHSProblem.sample(
            self.dim, norm, seed, kernel=self.kernel, noise=self.noise, threshold_quantile=self.quantile, initial_quantiles=start
        )
        return problem if self.shape == "rkhs" else _bent(problem, self.shape)

    def plant(self, problem: RKHSProblem, seed: int) -> Callable[[Any], float]:
        """Noisy measurements: Gaussian, or Student's t with three degrees of freedom and the same standard deviation."""
        rng = np.random.default_rng((seed, 2))
        if not self.heavy_tails:
            return lambda params: problem.value(params) + self.noise * float(rng.standard_normal())
        return lambda params: problem.value(params) + self.noise / np.sqrt(3.0) * float(rng.standard_t(3.0))


class _Bent:
    """f plus something that no RKHS of a Matern 3/2 or smoother kernel contains, where f is below an edge in the safe region."""

    def __init__(self, f: Any, threshold: float, edge: float, shape: str):
        self._f, self._margin, self._edge, self._shape = f, edge - threshold, edge, shape
        self.kernel, self.dim, self.norm = f.kernel, f.dim, f.norm

    def __call__(self, x: Any) -> Any:
        values = self._f(x)
        if self._shape == "kink":  # the slope triples
            return values + 2.0 * np.minimum(values - self._edge, 0.0)
        # a step down half of the way to the threshold, or a cliff, straight into what is unsafe
        fall = 0.5 * self._margin if self._shape == "step" else self._margin + 0.1 * self.norm
        return np.where(values < self._edge, values - fall, values)

    def local_norm(self, *_: Any, **__: Any) -> float:
        """Not a member of the space."""
        return float("inf")


def _bent(problem: RKHSProblem, shape: str) -> RKHSProblem:
    """The same start and threshold, bent half-way between their values; the optimum is the one that can still be reached."""
    edge = 0.5 * (problem.threshold + problem.initial_value)
    f = _Bent(problem.f, problem.threshold, edge, shape)
    points = np.sort(np.append(np.linspace(0.0, 1.0, 10_001), problem.initial[0]))[:, None]
    best = reachable_argmax(f(points), problem.threshold, int(np.searchsorted(points[:, 0], problem.initial[0])))
    return replace(problem, f=f, optimum_x=points[best], optimum=float(f(points[best : best + 1])[0]))  # type: ignore[arg-type]


M32, M52 = Matern(1.5, 0.1), Matern(2.5, 0.1)
LOW, HIGH = (1.0, 10.0), (1.0, 30.0)

FAMILIES: dict[str, Family] = {
    "1-D, norm 1..10": Family(1, M32, LOW),
    "1-D, norm 1..30": Family(1, M32, HIGH),
    "1-D, norm 1..30, Matern 5/2": Family(1, M52, HIGH),
    "1-D, norm 1..30, RBF": Family(1, RBF(0.1), HIGH),
    "1-D, norm 1..30, noise 0.05": Family(1, M32, HIGH, noise=0.05),
    "1-D, norm 1..30, threshold 10 %": Family(1, M32, HIGH, quantile=0.1),
    "1-D, norm 1..30, threshold 50 %": Family(1, M32, HIGH, quantile=0.5),
    "2-D, norm 1..10": Family(2, Matern(1.5, 0.2), LOW, experiments=60),
    "2-D, norm 1..30": Family(2, Matern(1.5, 0.2), HIGH, experiments=60),
    "2-D, norm 1..30, Matern 5/2": Family(2, Matern(2.5, 0.2), HIGH, experiments=60),
    "2-D, norm 1..30, RBF": Family(2, RBF(0.2), HIGH, experiments=60),
    "2-D, norm 1..30, noise 0.05": Family(2, Matern(1.5, 0.2), HIGH, noise=0.05, experiments=60),
    "2-D, norm 1..30, threshold 50 %": Family(2, Matern(1.5, 0.2), HIGH, quantile=0.5, experiments=60),
    "2-D, wrong kernel: Matern 5/2 for 3/2": Family(
        2, Matern(1.5, 0.2), HIGH, model=Matern(2.5, 0.2), assumptions=False, experiments=60
    ),
    "3-D, norm 1..10": Family(3, Matern(1.5, 0.3), LOW, experiments=50),
    "3-D, norm 1..30": Family(3, Matern(1.5, 0.3), HIGH, experiments=50),
    "3-D, norm 1..30, Matern 5/2": Family(3, Matern(2.5, 0.3), HIGH, experiments=50),
    "3-D, norm 1..30, RBF": Family(3, RBF(0.3), HIGH, experiments=50),
    "3-D, norm 1..30, noise 0.05": Family(3, Matern(1.5, 0.3), HIGH, noise=0.05, experiments=50),
    "3-D, norm 1..30, threshold 50 %": Family(3, Matern(1.5, 0.3), HIGH, quantile=0.5, experiments=50),
    "3-D, wrong kernel: Matern 5/2 for 3/2": Family(
        3, Matern(1.5, 0.3), HIGH, model=Matern(2.5, 0.3), assumptions=False, experiments=50
    ),
    "6-D, norm 1..10": Family(6, Matern(1.5, 0.6), LOW, experiments=50),
    "6-D, norm 1..30": Family(6, Matern(1.5, 0.6), HIGH, experiments=50),
    "wrong kernel: Matern 5/2 for 3/2": Family(1, M32, HIGH, model=M52, assumptions=False),
    "wrong kernel: RBF for Matern 3/2": Family(1, M32, HIGH, model=RBF(0.1), assumptions=False),
    "wrong kernel: Matern 3/2 for 5/2": Family(1, M52, HIGH, model=M32, assumptions=False),
    "lengthscale 1.5 times too long": Family(1, M32, HIGH, model=Matern(1.5, 0.15), assumptions=False),
    "lengthscale 1.5 times too short": Family(1, M32, HIGH, model=Matern(1.5, 0.1 / 1.5), assumptions=False),
    "kink above the limit": Family(1, M32, HIGH, shape="kink", assumptions=False),
    "step above the limit": Family(1, M32, HIGH, shape="step", assumptions=False),
    "cliff above the limit": Family(1, M32, HIGH, shape="cliff", assumptions=False),
    "heavy-tailed noise": Family(1, M32, HIGH, heavy_tails=True, assumptions=False),
}

BOUNDS: dict[str, ConfidenceBound] = {
    "paper": Paper(),
    "ay": AbbasiYadkori(),
    "ay-noise": AbbasiYadkori("noise"),
    "mixture": MartingaleMixture(),
}
ESTIMATORS = ("true", "scenario", "adaptive", "hoeffding", "posterior", "both")  # both: adaptive, not below posterior
RULES = ("confidence", "union", "continuity")
PLACES = ("local", "global")


KNOWN = "default, norm told"  # the library's own settings but for the norm, which is the true one
JOINT = "adaptive norm, joint"  # in two and three dimensions: without the second family of functions, and without a plan
SHORT = "default, stride 0.1"
ROUGH = "default, Matern 1/2"  # a kernel whose space contains functions with kinks


def optimizer(method: str, family: Family, problem: RKHSProblem, seed: int, m: int | None = None) -> SafeOptimizer:
    """`estimator/bound/rule/place`, for example adaptive/mixture/confidence/local; or "default", or a variant of it."""
    return _build(method, family, problem.domain, problem.threshold, problem.f.norm, seed, m)


def fingerprint(method: str, family: Family, m: int | None = None, experiments: int | None = None) -> str:
    """Eight letters that change with every setting of the method or the problems, but for seed, threshold and true norm."""
    settings = _build(method, family, Box.unit(family.dim), 0.0, 1.0, 0, m).state.settings
    content = repr((settings, replace(family, experiments=experiments or family.experiments))) + plan_constants(settings)
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def served(method: str, family: Family) -> bool:
    """Whether the method is for problems of this family: functions given all samples are drawn in up to three dimensions."""
    return method.split("/")[0] not in ("posterior", "both") or PosteriorScenario.serves(
        family.model or family.kernel, family.dim
    )


def _build(*given: Any) -> SafeOptimizer:
    """What is measured here is known to deserve a second look."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SafeboWarning)
        return _made(*given)


def _made(
    method: str, family: Family, domain: Box, threshold: float, true_norm: float, seed: int, m: int | None
) -> SafeOptimizer:
    common: dict[str, Any] = {"kernel": family.model or family.kernel, "noise": family.noise, "seed": seed}
    if method == "default":
        return SafeOptimizer(domain, threshold, **common)
    if method == KNOWN:
        return SafeOptimizer(domain, threshold, norm=Fixed(true_norm), **common)
    if method == JOINT:
        return SafeOptimizer(domain, threshold, norm=AdaptiveScenario(floor=None), acquisition="joint", **common)
    if method == SHORT:
        return SafeOptimizer(domain, threshold, stride=0.1, **common)
    if method == ROUGH:
        return SafeOptimizer(domain, threshold, **common | {"kernel": Matern(0.5, common["kernel"].lengthscale)})
    parts = method.split("/")
    known = (ESTIMATORS, tuple(BOUNDS), RULES, PLACES)
    if len(parts) != 4 or any(part not in names for part, names in zip(parts, known, strict=False)):
        raise InvalidValueError(
            f"Unknown method {method!r}: estimator/bound/rule/place from {known}, or 'default', {KNOWN!r}, {JOINT!r}, {SHORT!r}, "
            f"{ROUGH!r}."
        )
    estimator, bound, rule, place = parts
    scenarios: dict[str, Any] = {} if m is None else {"m": m}
    estimators: dict[str, Callable[[], NormEstimator]] = {
        "true": lambda: Fixed(true_norm),
        "scenario": lambda: Scenario(**scenarios),
        "adaptive": lambda: AdaptiveScenario(**scenarios, floor=None),
        "hoeffding": lambda: Hoeffding(**scenarios),
        "posterior": PosteriorScenario,
        "both": lambda: AdaptiveScenario(**scenarios, floor=PosteriorScenario()),
    }
    norm = estimators[estimator]()
    cubes = LocalCubes(n=5, delta=0.1) if place == "local" else None
    published = bound == "paper"  # what was published leaves norms unchallenged
    return SafeOptimizer(
        domain,
        threshold,
        norm=norm,
        bound=BOUNDS[bound],
        safe_set=rule,
        cubes=cubes,
        falsify=not published,
        stride=None,
        acquisition="joint",
        **common,
    )


YARDSTICK = "true/paper/confidence/global"  # SafeOpt told the true norm

COMBINATIONS = [f"{e}/{b}/{r}/{p}" for p in reversed(PLACES) for e in ESTIMATORS for b in BOUNDS for r in RULES]


@dataclass(frozen=True)
class Part:
    """Methods on families, with this many runs each."""

    families: tuple[str, ...]
    methods: tuple[str, ...]
    runs: int
    m: int | None = None  # scenarios, where fewer than the default make a large table affordable
    first: int = 0  # seed of the first run
    experiments: int | None = None  # where it is not the families' number


_ONE = ("1-D, norm 1..10", "1-D, norm 1..30")
_REST = tuple(name for name, f in FAMILIES.items() if f.dim == 1 and name not in _ONE)
_TWO = ("2-D, norm 1..10", "2-D, norm 1..30")
_TWO_REST = tuple(name for name, f in FAMILIES.items() if f.dim == 2 and name not in _TWO)
_THREE = ("3-D, norm 1..10", "3-D, norm 1..30")
_THREE_REST = tuple(name for name, f in FAMILIES.items() if f.dim == 3 and name not in _THREE)
_SIX = ("6-D, norm 1..10", "6-D, norm 1..30")
_PUBLISHED = "scenario/paper/confidence/local"
HELD_OUT = "2-D, held out"
FIFTY = "1-D, 50 experiments, held out"
KINKS = "kinks and steps"
ELSEWHERE = "combinations elsewhere"
_ELSEWHERE = (
    "1-D, norm 1..30, Matern 5/2",
    "1-D, norm 1..30, RBF",
    "1-D, norm 1..30, noise 0.05",
    "1-D, norm 1..30, threshold 50 %",
    "wrong kernel: Matern 5/2 for 3/2",
    *_TWO,
    "3-D, norm 1..30",
    "6-D, norm 1..30",
)
PARTS: dict[str, Part] = {
    "main": Part(_ONE, ("default", YARDSTICK, "true/mixture/confidence/global"), 300),
    "published": Part(_ONE, (_PUBLISHED, "scenario/paper/union/local", "scenario/paper/confidence/global"), 100),
    "conditions": Part(_REST, ("default", YARDSTICK), 60),
    "2-D": Part(_TWO, ("default", JOINT, YARDSTICK, KNOWN), 90),
    # held out: problems that no constant was chosen with
    "1-D, held out": Part(_ONE, ("default", YARDSTICK), 100, first=300),
    FIFTY: Part(_ONE, ("default", YARDSTICK), 100, first=400, experiments=50),
    "1-D RBF, held out": Part(("1-D, norm 1..30, RBF",), ("default", YARDSTICK), 60, first=300),
    HELD_OUT: Part(_TWO, ("default", YARDSTICK, KNOWN), 80, first=90),
    "3-D, held out": Part(_THREE, ("default", JOINT, YARDSTICK), 10, first=20),
    "6-D, held out": Part(_SIX, ("default", YARDSTICK), 2, first=8),
    "2-D conditions": Part(_TWO_REST, ("default", YARDSTICK), 20),
    "3-D": Part(_THREE, ("default", JOINT, YARDSTICK, KNOWN), 20),
    "3-D conditions": Part(_THREE_REST, ("default", YARDSTICK), 10),
    "6-D": Part(_SIX, ("default", YARDSTICK), 8),
    KINKS: Part(("kink above the limit", "step above the limit"), (SHORT, ROUGH), 20),
    "short strides": Part(("1-D, norm 1..30",), (SHORT,), 20),
    "combinations": Part(_ONE, tuple(COMBINATIONS), 20, m=250),
    ELSEWHERE: Part(_ELSEWHERE, tuple(COMBINATIONS), 4, m=250, experiments=30),
}
