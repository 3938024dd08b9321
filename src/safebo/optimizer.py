"""Ask and tell (Algorithms 1, 2 and 4).

`SafeOptimizer` is the only stateful class: it holds a frozen `State` and derived arrays. `ask` is pure: the same state gives the
same trial, as often as one asks. `tell` commits: the measurement, and the norm estimates that the trial was certified with.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from safebo.analysis import Analysis, analyse, joint_interval, present, repeat, rules_of
from safebo.bounds import ConfidenceBound, MartingaleMixture
from safebo.domain import Box, Cube, GlobalDomain, Locality, default_cubes, resolve_points_per_axis
from safebo.exceptions import (
    AlreadyToldError,
    ConflictError,
    InvalidValueError,
    JitterWarning,
    NoInitialSampleError,
    StopReason,
    UnknownTrialError,
    UnsafeInitialSampleError,
    UnsafeMeasurementWarning,
)
from safebo.inspection import SubDomainView, certifies, view
from safebo.intervals import Refutation
from safebo.journal import Journal, Waiting, not_stored
from safebo.kernels import Matern, StationaryKernel
from safebo.measured import Measured, measured_points
from safebo.naming import unmatched
from safebo.norms import AdaptiveScenario, NormEstimator
from safebo.norms.base import resolve
from safebo.notices import check_scale, warn_cautions, warn_refuted
from safebo.outputs import Constraint, Guarantee, Output, beyond, guarantee, number, outside, resolve_outputs
from safebo.posterior import Posterior
from safebo.state import Abort, NormRecord, Sample, Settings, State, checked_context
from safebo.subdomain import SubDomain

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]
Params = Mapping[str, float] | ArrayLike


@dataclass(frozen=True)
class Trial:
    """The next experiment and its certificate: the interval that its sub-domain holds for it, and the norm behind it."""

    id: str
    params: dict[str, float]
    x: tuple[float, ...]  # unit cube
    lower: float  # objective
    upper: float
    norm: float  # B_t of the objective in the sub-domain
    cube: Cube
    confidence: float  # probability of the certificate, see `SafeOptimizer.guarantee` and docs/guarantees.md
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)  # every output
    norms: dict[str, float] = field(default_factory=dict)
    refutations: tuple[Refutation, ...] = ()  # norms that the data refuted at this step

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True)
class _Issued:
    """What an optimizer remembers of a trial that it handed out."""

    x: tuple[float, ...]
    params: dict[str, float]
    record: NormRecord | None  # the norms that certified it; older runs did not store them
    stale: bool = False  # whether the state has changed since, as far as an older run tells


@dataclass(frozen=True)
class Best:
    """The parameters to use: never worse than the best ones that were measured inside every limit, see `SafeOptimizer.best`."""

    params: dict[str, float]
    lower: float
    mean: float
    upper: float


class SafeOptimizer:
    """Maximises an unknown function by experiments that are certified as safe.

    >>> opt = SafeOptimizer(Box({"kp": (0.0, 5.0)}), threshold=0.0)
    >>> opt.tell({"kp": 1.0}, 0.8)               # at least one safe measurement to start from
    >>> while (trial := opt.ask()) is not None:
    ...     opt.tell(trial, measure(trial.params))

    domain            named parameters with bounds
    threshold         the objective must stay above it; None if only `constraints` limit the experiments
    kernel            on the unit cube: lengthscale 0.1 is a tenth of each parameter's range
    noise             standard deviation (sub-Gaussian parameter) of a measurement, in measured units
                      (scale your outputs to order sqrt(outputscale): the norm estimators have a scale, or a prior of it)
    norm              how the norm is bounded: `AdaptiveScenario` (default: learned, with its scale; in two and three
                      dimensions, and in one with an RBF kernel, with `PosteriorScenario` as its floor, unless another
                      floor is given),
                      `PosteriorScenario` (learned from all samples together), `Scenario` (the paper's), `Fixed` (guessed),
                      `Hoeffding` (2024)
    bound             the confidence bound: `MartingaleMixture` (default), `AbbasiYadkori`, or `Paper` as printed
    delta             failure probability of the confidence intervals, shared over all limits
    cubes             "auto" (default: `DoublingCubes` from a quarter of the shortest lengthscale, in three to six dimensions
                      from less, to four of them), the paper's `LocalCubes(n, delta)`, another locality, or None for the
                      global domain only
    points_per_axis   grid of every sub-domain
    safe_set          "confidence" (default: lower bound above the threshold), "continuity" (eq. (6)) or "union" of both
    acquisition       "auto" (default: "directed" in two and three dimensions without `screening`, else "joint"), "joint" (the
                      most uncertain point, given what all sub-domains around it know together), "directed" (a step on the way to
                      the most promising place, every fifth experiment as "joint"), "balanced" (every third experiment to the
                      largest upper bound, else "joint") or "paper" (Alg. 4, l. 7)
    stride            no experiment where the data of its sub-domain leave more doubt than one measurement leaves this many
                      lengthscales away from it; None: no limit beyond the certificate
    min_width         points whose interval is narrower are not measured again, in measured units
    constraints       further outputs with limits
    abort_radius      lengthscales around an aborted experiment in which none follows, except nearer to earlier good measurements
    falsify           test every norm bound against the data, and raise it if they refute it
    refutation_margin factor above the refuting bound that a refuted norm is raised to
    screening         a cheap norm estimator used to rank sub-domains; the returned trial is always certified with `norm`
    memory_budget     bytes of grid arrays kept between asks; beyond it they are rebuilt when needed
    seed              of the random functions; same data and seed, same trials
    """

    def __init__(
        self,
        domain: Box,
        threshold: float | None,
        *,
        kernel: StationaryKernel | None = None,
        noise: float = 0.01,
        norm: NormEstimator | None = None,
        bound: ConfidenceBound | None = None,
        delta: float = 0.01,
        cubes: Locality | Literal["auto"] | None = "auto",
        points_per_axis: int | tuple[int, ...] | None = None,
        safe_set: str = "confidence",
        acquisition: str = "auto",
        stride: float | None = 0.5,
        min_width: float = 0.1,
        constraints: Mapping[str, Constraint] | None = None,
        abort_radius: float = 0.25,
        falsify: bool = True,
        refutation_margin: float = 1.2,
        screening: NormEstimator | None = None,
        memory_budget: int = 1_000_000_000,
        seed: int = 0,
    ) -> None:
        if not isinstance(domain, Box):
            raise InvalidValueError(f"domain must be a Box, got {domain!r}.")
        if constraints is not None and not isinstance(constraints, Mapping):
            raise InvalidValueError(f"constraints must be a mapping name -> Constraint, got {constraints!r}.")
        main = kernel if kernel is not None else Matern(nu=1.5, lengthscale=0.1)
        limits = dict(constraints or {})
        if both := sorted(set(limits) & set(domain.names)):
            raise InvalidValueError(f"The name {both[0]!r} is a parameter's: rename this constraint.")
        outputs = resolve_outputs(
            threshold,
            limits,
            main,
            noise,
            norm if norm is not None else AdaptiveScenario(),
            bound if bound is not None else MartingaleMixture(),
            delta,
            min_width,
        )
        outputs = tuple(replace(o, norm=resolve(o.norm, o.kernel, domain.dim)) for o in outputs)  # floors follow both
        settings = Settings(
            domain=domain,
            outputs=outputs,
            locality=_locality(cubes, outputs, domain.dim),
            shape=resolve_points_per_axis(points_per_axis, domain.dim),
            safe_set=safe_set,
            acquisition=_acquisition(acquisition, domain.dim, screening),
            falsify=falsify,
            margin=refutation_margin,
            screening=screening,
            memory_budget=memory_budget,
            seed=seed,
            stride=stride,
            abort_radius=abort_radius,
        )
        warn_cautions(settings)
        self._start(State(settings))

    def _start(self, state: State) -> None:
        self._lock = threading.RLock()  # one thread at a time: a trial's certificate and its measurement belong together
        self._state = state
        self._rules = rules_of(state.settings)
        self._committed: dict[Cube, SubDomain] = {}
        self._replayed = 0  # how many of the state's records `_committed` contains
        self._analysis: Analysis | None = None
        self._shown: Analysis | None = None  # the same with more sub-domains brought up to date, for looking
        self._issued: dict[str, _Issued] = {}
        self._journal: Journal | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._journal is not None:
            raise InvalidValueError("A durable optimizer cannot be copied or pickled: load its run again instead.")
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, content: dict[str, Any]) -> None:
        self.__dict__.update(content, _lock=threading.RLock())

    def __repr__(self) -> str:
        outputs = ", ".join(o.name for o in self._state.outputs)
        return f"SafeOptimizer({self.domain!r}, outputs: {outputs}, {self._state.step} samples)"

    # -- the loop -------------------------------------------------------------------------------------------------------

    def tell(
        self,
        what: Trial | Params,
        value: float | None = None,
        constraints: Mapping[str, float] | None = None,
        *,
        status: str = "measured",
        reason: str = "",
        context: Mapping[str, Any] | None = None,
    ) -> None:
        """Commit a measurement: of a trial, or of parameters that were run without asking (the initial safe samples, say).

        The first sample must lie inside every limit. Later ones need not: they are used as data, never as a starting point, and
        a warning says so. A rejected measurement leaves the state as it was.

        context: what else was noted with the measurement (plain JSON values); it is kept and never computed with.
        status="aborted", without values: the experiment failed or was stopped. It is recorded with its reason (`state.aborts`),
        nothing is learned from it, and no experiment follows next to it (`State.blocked`).
        """
        with self._lock, not_stored([(what, value, constraints, reason or None)]):
            self._refresh()
            if status == "aborted":
                self._abort(what, value, constraints if context is None else context, reason)
            elif status != "measured":
                raise InvalidValueError(f"status must be 'measured' or 'aborted', got {status!r}.")
            elif reason:
                raise InvalidValueError(f"A reason belongs to an aborted experiment, got {reason!r} with a measurement.")
            else:
                self._tell([(what, value, constraints, context)])

    def tell_many(self, measurements: Iterable[tuple[Any, ...]]) -> None:
        """Commit measurements that were made earlier, all or none: (parameters, value[, constraints[, context]]) each."""
        rows = [(*row, None, None)[:4] for row in measurements]
        if any(isinstance(row[0], Trial) for row in rows):
            raise InvalidValueError("Earlier measurements come with their parameters; tell a trial by itself.")
        with self._lock, not_stored(rows):
            self._refresh()
            self._tell(rows)

    def _abort(self, what: Trial | Params, value: object, constraints: object, reason: object) -> None:
        if value is not None or constraints is not None:
            raise InvalidValueError(f"An aborted experiment has no measurement, got {value!r}, {constraints!r}: tell it without.")
        if not isinstance(reason, str):
            raise InvalidValueError(f"The reason of an abort must be text, got {reason!r}.")
        trial = what if isinstance(what, Trial) else None
        point = self._check_trial(trial) if trial is not None else self.domain.point(what)  # type: ignore[arg-type]
        x = self.domain.to_unit(point).tolist() if trial is None else trial.x
        abort = Abort(tuple(point.tolist()), tuple(x), self._state.step, reason, None if trial is None else trial.id)
        if self._journal is not None:
            self._journal.aborted(abort)
        self._state = self._state.aborted(abort)
        self._analysis = None
        if trial is not None:
            self._issued.pop(trial.id, None)

    def _tell(self, rows: list[tuple[Any, ...]]) -> None:
        samples: tuple[Sample, ...] = ()
        started = bool(self._state.inside().any())
        for what, value, constraints, context in rows:
            sample = self._sample(what, value, constraints, context)
            if not started and (violated := outside(self._state.outputs, sample.values)):
                text = f"{self._named(sample)} is not safe: {self._limits(violated)}"
                if self._journal is not None and len(rows) == 1:
                    self._journal.refused(f"the start {text}")
                raise UnsafeInitialSampleError(
                    f"The initial sample {text}. Start from a parameter that is known to be safe, or correct the threshold."
                )
            samples, started = (*samples, sample), True
        if not samples:
            return
        trial = rows[0][0] if isinstance(rows[0][0], Trial) else None
        record = self._record_of(trial)
        last = self._state.step + len(samples)
        if self._journal is not None:
            last = self._journal.told(samples, record)
        self._commit(record)
        self._state = self._state.told(samples[0], record)
        for sample in samples[1:]:
            self._state = self._state.told(sample, None)
        self._analysis = None
        if trial is not None:
            self._issued.pop(trial.id, None)
        check_scale(self._state, len(samples), last)
        for i, sample in enumerate(samples, last - len(samples) + 1):
            self._warn_violated(i, sample)

    def _record_of(self, trial: Trial | None) -> NormRecord | None:
        """The norms that a trial was certified with, however long ago it was asked for."""
        if trial is None:
            return None
        issued = self._issued[trial.id]
        if issued.record is None and not issued.stale:
            return self._require_analysis().record
        return issued.record

    def _commit(self, record: NormRecord | None) -> None:
        """Take over the sub-domains behind a record: as they are if it is the present one's, else they are repeated later."""
        if record is None:
            return
        records = self._state.records
        late = bool(records) and records[-1].step > record.step
        if late:  # it goes between records that were repeated already
            self._committed, self._replayed = {}, 0
        elif self._analysis is not None and self._analysis.record == record and self._replayed == len(records):
            self._committed, self._replayed = self._analysis.subdomains, self._replayed + 1

    def _sample(self, what: Trial | Params, value: object, constraints: Any, context: object) -> Sample:
        trial = what if isinstance(what, Trial) else None
        point = self._check_trial(trial) if trial is not None else self.domain.point(what)  # type: ignore[arg-type]
        values = self._check_values(value, constraints)
        x = self.domain.to_unit(point).tolist() if trial is None else trial.x
        noted = None if context is None else checked_context(context)
        return Sample(tuple(point.tolist()), tuple(x), values, None if trial is None else trial.id, noted)

    def _named(self, sample: Sample) -> str:
        """The parameters of a sample: "kp = 2.1, kd = 0.3"."""
        return ", ".join(f"{name} = {value:.6g}" for name, value in zip(self.domain.names, sample.point, strict=True))

    def _limits(self, violated: Mapping[str, float]) -> str:
        return "; ".join(beyond(o, violated[o.name]) for o in self._state.outputs if o.name in violated)

    def _warn_violated(self, number: int, sample: Sample) -> None:
        if violated := outside(self._state.outputs, sample.values):
            warnings.warn(
                f"Measurement {number} at {self._named(sample)} violates a limit: {self._limits(violated)}.",
                UnsafeMeasurementWarning,
                stacklevel=4,
            )

    def ask(self) -> Trial | None:
        """The next certified experiment, or None when there is none left; then `stop_reason` says why."""
        with self._lock:
            return self._ask()

    def _ask(self) -> Trial | None:
        self._refresh()
        if self._journal is not None and self._journal.halted is not None:
            return None
        pending = None if self._journal is None else self._journal.pending
        # `asked` refuses if it was handed out by somebody else
        if self._journal is not None and pending is not None and self._journal.asked(pending.trial, pending.record):
            self._issue(pending.trial, pending.record, pending.stale)
            return pending.trial
        analysis = self._require_analysis()
        if analysis.choice is None:
            if self._journal is not None and analysis.stop_reason is not None:
                self._journal.exhausted(analysis.stop_reason)
            return None
        cube, candidate = analysis.choice
        norms = {o.name: s.norm for o, s in zip(self._state.outputs, analysis.subdomains[cube].outputs, strict=True)}
        bounds = {
            o.name: pair for o, pair in zip(self._state.outputs, zip(candidate.lower, candidate.upper, strict=True), strict=True)
        }
        point = self.domain.from_unit(np.array(candidate.x))
        trial = Trial(
            id=self._trial_id(),
            params=self.domain.as_dict(point),
            x=candidate.x,
            lower=candidate.lower[0],
            upper=candidate.upper[0],
            norm=norms[self._state.outputs[0].name],
            cube=cube,
            confidence=self.guarantee.probability,
            bounds=bounds,
            norms=norms,
            refutations=analysis.refutations,
        )
        if self._journal is not None:
            self._journal.asked(trial, analysis.record)
        self._issue(trial, analysis.record)
        return trial

    def _issue(self, trial: Trial, record: NormRecord | None, stale: bool = False) -> None:
        self._issued[trial.id] = _Issued(trial.x, dict(trial.params), record, stale)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why `ask` returns None, with `advice`; None while there is a trial to run."""
        if self._journal is not None and self._journal.halted is not None:
            return self._journal.halted
        return self._require_analysis().stop_reason

    # -- results --------------------------------------------------------------------------------------------------------

    def best(self) -> Best:
        """The parameters to use: the best ones that were measured inside every limit, or certified ones that are surely better.

        Of the measured ones it is those with the largest lower bound of the objective, from all that the sub-domains around them
        know and from their own measurements (`bounds`). Parameters that were never measured take their place only if they are
        certified and their lower bound lies above the mean of the measured ones.
        """
        analysis, measured = self._require_analysis(), self._measured
        inside = measured.inside(self._state.outputs)
        if not inside.any():  # some point was measured inside once, and outside on average
            inside[measured.index_of(self._state.x()[self._state.inside()])] = True
        places, alone = measured.x[inside], (measured.lower[inside, 0], measured.upper[inside, 0])
        low, high = self._interval(places, 0)
        j = int(np.argmax(np.maximum(low, alone[0])))
        x, lower, upper = places[j], float(low[j]), float(high[j])
        mean = float(np.clip(self._mean(x, lower, upper), alone[0][j], alone[1][j]))  # its own measurement needs no norm
        found = [s.best for s in analysis.open.values() if s.best is not None]
        candidate = max(found, key=lambda c: c.lower[0], default=None)
        if candidate is not None and candidate.lower[0] > mean:
            x, lower, upper = np.array(candidate.x), candidate.lower[0], candidate.upper[0]
            mean = self._mean(x, lower, upper)
        return Best(self.domain.as_dict(self.domain.from_unit(x)), lower, mean, upper)

    def _mean(self, x: FloatArray, lower: float, upper: float) -> float:
        """Posterior mean of the objective at one point of the unit cube, inside its interval."""
        mean, _ = self._posterior(0).at(x[None, :])
        return float(np.clip(mean[0], lower, upper))

    def bounds(self, x: ArrayLike, output: str | None = None) -> tuple[FloatArray, FloatArray]:
        """Lower and upper bound of an output (default: the objective) at points in user units, (p,) each.

        Every sub-domain around a point holds an interval for it, and so does a measurement of just that point, see
        `safebo.measured`; the intersection is returned. Where two of them contradict each other (one norm must be wrong), it is
        the interval that spans both.
        """
        return self._interval(self._unit_points(x), self._output_index(output))

    def _interval(self, points: FloatArray, index: int) -> tuple[FloatArray, FloatArray]:
        """Bounds of one output at points of the unit cube, certified by all samples."""
        subdomains = self._present(points).subdomains
        lower, upper = joint_interval(subdomains, self._state.outputs, points, only=index, slack=self.domain.rounding)
        return self._measured.intersected(points, index, lower[:, 0], upper[:, 0])

    def mean(self, x: ArrayLike, output: str | None = None) -> FloatArray:
        """Posterior mean of an output (default: the objective) given all samples, at points in user units, (p,)."""
        self._require_start()
        points, index = self._unit_points(x), self._output_index(output)
        return self._posterior(index).at(points)[0]

    def _posterior(self, index: int) -> Posterior:
        """Posterior of one output given all samples, whatever the sub-domains are."""
        output = self._state.outputs[index]
        prior = Posterior.empty(output.kernel, self.domain.dim, output.bound.regulariser(output.noise))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitterWarning)  # for display only: the sub-domains warn where it matters
            return prior.extend(self._state.x(), self._state.values()[:, index])

    def is_safe(self, x: ArrayLike) -> Mask:
        """Which points in user units are certified as safe by some sub-domain, or by their own measurement, (p,)."""
        points = self._unit_points(x)
        blocked = self._state.blocked(points)
        result = self._measured.certified(points, self._state.outputs) & ~blocked
        for subdomain in self._present(points).subdomains.values():
            todo = np.flatnonzero(~result & ~blocked & subdomain.cube.contains(points, self.domain.rounding))
            if len(todo) and len(subdomain.rows):
                result[todo] = certifies(subdomain, self._rules, points[todo])
        return result

    def safe_set(self) -> FloatArray:
        """All certified points of the sub-domains' grids, and the certified measured ones, in user units, (p, n), each once."""
        pieces = [s.points[s.safe] for s in self.subdomains()]
        known = self._measured.x
        sure = self._measured.certified(known, self._state.outputs) & ~self._state.blocked(known)
        return self.domain.from_unit(np.unique(np.concatenate([*pieces, known[sure]]), axis=0))

    def subdomains(self) -> list[SubDomainView]:
        """Intervals and sets S, M, G of every sub-domain on its grid, certified by all samples, rebuilt on request."""
        analysis = self._present(None)
        return [view(s, self._rules, analysis.best_lower) for s in analysis.open.values()]

    def _present(self, points: FloatArray | None) -> Analysis:
        """The analysis in which the sub-domains around points of the unit cube, or all of them, are certified by all samples."""
        with self._lock:
            analysis = self._require_analysis()
            self._shown = present(self._state, analysis if self._shown is None else self._shown, points)
            return self._shown

    @property
    def _measured(self) -> Measured:
        """What the measurements say of their own points."""
        return measured_points(self._state, self.domain.rounding)

    @property
    def guarantee(self) -> Guarantee:
        """What every certificate promises, and how the failure probability is shared over the limits."""
        return guarantee(self._state.outputs)

    @property
    def refutations(self) -> tuple[Refutation, ...]:
        """Norm bounds that the data refuted at the current step."""
        return self._require_analysis().refutations

    def _require_start(self) -> None:
        if not self._state.inside().any():
            raise NoInitialSampleError("There is no safe measurement yet: tell at least one before asking.")

    def _require_analysis(self) -> Analysis:
        with self._lock:
            self._require_start()
            if self._analysis is None:
                for record in self._state.records[self._replayed :]:  # after `from_json`: repeat what was committed
                    self._committed = repeat(self._state, self._committed, record)
                    self._replayed += 1
                self._analysis, self._shown = analyse(self._state, self._committed), None
                warn_refuted(self._analysis.refutations)
            return self._analysis

    # -- state ----------------------------------------------------------------------------------------------------------

    @property
    def domain(self) -> Box:
        """The box of parameters."""
        return self._state.settings.domain

    @property
    def state(self) -> State:
        """The frozen state; `state.to_json()` writes it."""
        return self._state

    @classmethod
    def from_json(cls, text: str) -> SafeOptimizer:
        """Continue from `state.to_json()`: the next trial is the one the original would have asked for."""
        optimizer = cls.__new__(cls)
        optimizer._start(State.from_json(text))
        return optimizer

    def _refresh(self) -> None:
        if self._journal is not None:
            self._journal.refresh()

    def _follow(self, state: State, pending: Waiting | None) -> None:
        """Take over a later state of the same run: only what is new in it is computed."""
        with self._lock:
            old, new = self._state, state
            parts = ("samples", "records", "aborts")
            if any(getattr(new, part)[: len(getattr(old, part))] != getattr(old, part) for part in parts):
                journal, lock = self._journal, self._lock
                self._start(state)
                self._journal, self._lock = journal, lock
            elif any(len(getattr(new, part)) > len(getattr(old, part)) for part in parts):
                self._state, self._analysis = state, None
            if pending is not None and pending.trial.id not in self._issued:
                self._issue(pending.trial, pending.record, pending.stale)

    # -- durable runs ---------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, url: str, run: str) -> SafeOptimizer:
        """Continue a stored run: a file such as "safebo.db", or a database's URL. Every step is stored before it counts.

        The next trial is the one that an undisturbed run would ask for. If one was handed out before and nothing was told about
        it, `pending` is that trial, and `ask` refuses: tell it, tell it as aborted, or `retry`.
        """
        from safebo.runs.campaign import Campaign

        return Campaign.load(url, run).optimizer

    def save(self, url: str, run: str) -> None:
        """Store everything so far as a new run, and from now on every step before it counts; `load` continues it."""
        from safebo.runs.campaign import Campaign

        with self._lock:
            if self._journal is not None:
                raise InvalidValueError("This optimizer's steps are stored already.")
            Campaign.store_as(url, run, self)

    @property
    def pending(self) -> Trial | None:
        """The trial of a stored run that was handed out and has neither been told nor aborted."""
        waiting = None if self._journal is None else self._journal.pending
        return None if waiting is None else waiting.trial

    def retry(self) -> Trial:
        """Hand out the pending trial once more, after a person has made sure that this is right.

        If something was told or aborted since it was asked for, its certificate is of the past: another trial is returned.
        """
        with self._lock:
            if self._journal is None or (waiting := self._journal.pending) is None:
                raise InvalidValueError("There is no pending trial to run again.")
            if self._journal.retried(waiting.trial):
                return waiting.trial
            fresh = self._ask()
            if fresh is None:
                raise ConflictError(
                    f"Trial {waiting.trial.id} was withdrawn: what was told since it was asked for does not certify it, nor any "
                    f"other ({self.stop_reason})."
                )
            return fresh

    # -- checks ---------------------------------------------------------------------------------------------------------

    def _trial_id(self) -> str:
        return f"{self._state.step}-{self._state.digest()}"

    def _check_trial(self, trial: Trial) -> FloatArray:
        if trial.id in {s.trial for s in self._state.samples} | {a.trial for a in self._state.aborts}:
            raise AlreadyToldError(f"Trial {trial.id} has been told before; tell the parameters as a dict to add a repetition.")
        if self._journal is None and trial.id not in self._issued and self._state.step and trial.id == self._trial_id():
            self.ask()  # a trial from before a restart: the same state asks for it again
        issued = self._issued.get(trial.id)
        if issued is None or (issued.x, issued.params) != (trial.x, dict(trial.params)):
            raise UnknownTrialError(
                f"Trial {trial.id} was not issued by this optimizer in its present state; tell its parameters as a dict instead."
            )
        return self.domain.point(dict(trial.params))

    def _check_values(self, value: object, constraints: Mapping[str, float] | None) -> tuple[float, ...]:
        names = [o.name for o in self._state.outputs]
        if constraints is not None and not isinstance(constraints, Mapping):
            raise InvalidValueError(f"Constraint values come as a mapping name -> value, got {constraints!r}.")
        given: dict[str, Any] = dict(constraints or {})
        if wrong := unmatched(given, names[1:]):
            raise InvalidValueError(f"`constraints` has a measured value for each of the limits {names[1:]}: {wrong}")
        return (_measurement(value, names[0]), *(_measurement(given[n], n) for n in names[1:]))

    def _unit_points(self, x: ArrayLike) -> FloatArray:
        if isinstance(x, Mapping):
            return self.domain.to_unit(self.domain.point(x)[None, :])
        return self.domain.to_unit(self.domain.points(x))

    def _output_index(self, output: str | None) -> int:
        names = [o.name for o in self._state.outputs]
        if output is not None and output not in names:
            raise InvalidValueError(f"Unknown output {output!r}: choose one of {names}.")
        return 0 if output is None else names.index(output)


def _measurement(value: object, name: str) -> float:
    plain = isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)
    scalar = value.item() if plain and value.size == 1 else value  # type: ignore[attr-defined]
    return number(scalar, f"The measurement of {name!r}")


def _locality(cubes: Locality | Literal["auto"] | None, outputs: tuple[Output, ...], dim: int) -> Locality:
    """What `cubes` stands for."""
    if isinstance(cubes, str) and cubes == "auto":
        shortest = min(float(output.kernel.lengthscales(dim).min()) for output in outputs)
        return default_cubes(shortest, dim)
    return GlobalDomain() if cubes is None else cubes


def _acquisition(acquisition: str, dim: int, screening: NormEstimator | None) -> str:
    """What `acquisition` stands for. Screening ranks by uncertainty; "directed" has been measured in two and three dimensions."""
    if acquisition != "auto":
        return acquisition
    return "directed" if dim in (2, 3) and screening is None else "joint"
