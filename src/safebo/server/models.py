"""What goes in and out as JSON. Unknown fields, NaN, infinities and texts without end are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from safebo.bounds import MartingaleMixture
from safebo.domain import Box
from safebo.exceptions import InvalidValueError
from safebo.kernels import RBF, Matern, StationaryKernel
from safebo.norms import AdaptiveScenario, Fixed, NormEstimator, PosteriorScenario, Scenario
from safebo.optimizer import SafeOptimizer
from safebo.outputs import Constraint
from safebo.runs.ledger import RunConfig

MOST_PARAMETERS, MOST_LIMITS, MOST_INITIAL, MOST_POINTS = 8, 8, 500, 400_000
"""Of a run that is created over HTTP."""


def _one_line(text: str) -> str:
    """Names and units appear on pages and terminals, which obey control characters."""
    if not text.isprintable():
        raise ValueError(f"one line without control characters is expected, got {text!r:.100}")
    return text


def _no_control(text: str) -> str:
    if not text.replace("\n", "").replace("\t", "").isprintable():
        raise ValueError(f"text without control characters is expected, got {text!r:.100}")
    return text


Number = Annotated[float, Field(ge=-1e100, le=1e100, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=1e-12, le=1e12, allow_inf_nan=False)]
Scale = Annotated[float, Field(ge=1e-3, le=1e3, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=1e-6, le=0.5, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Label = Annotated[str, Field(min_length=1, max_length=60), AfterValidator(_one_line)]
Unit = Annotated[str, Field(max_length=40), AfterValidator(_one_line)]
Text = Annotated[str, Field(max_length=2000), AfterValidator(_no_control)]
Reason = Annotated[str, Field(max_length=1500)]
TrialId = Annotated[str, Field(min_length=1, max_length=100, description="As `ask` gave it.")]
Values = Annotated[dict[Label, Number], Field(max_length=MOST_PARAMETERS)]


class Model(BaseModel):
    """A JSON object with exactly these fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


# -- what clients send ---------------------------------------------------------------------------------------------------


class Parameter(Model):
    """A parameter of the experiments."""

    low: Number
    high: Number
    unit: Unit = ""


class Kernel(Model):
    """How smooth an output is, on parameters scaled to 0..1."""

    type: Literal["matern", "rbf"] = "matern"
    nu: Annotated[float, Field(ge=0.5, le=2.5, description="0.5, 1.5 or 2.5", json_schema_extra={"enum": [0.5, 1.5, 2.5]})] = 1.5
    lengthscale: Scale | Annotated[list[Scale], Field(min_length=1, max_length=MOST_PARAMETERS)] = 0.1
    outputscale: Positive = 1.0

    def build(self) -> StationaryKernel:
        """As the library has it."""
        scale = tuple(self.lengthscale) if isinstance(self.lengthscale, list) else self.lengthscale
        return RBF(scale, self.outputscale) if self.type == "rbf" else Matern(self.nu, scale, self.outputscale)


class Norm(Model):
    """How the norm is bounded: learned (adaptive, posterior), by the paper's scenarios, or guessed (fixed, with `value`)."""

    type: Literal["adaptive", "posterior", "scenario", "fixed"] = "adaptive"
    value: Positive | None = None
    m: Annotated[int, Field(ge=1, le=10_000)] | None = None
    gamma: Probability | None = None
    kappa: Probability | None = None
    alpha_bar: Positive | None = None
    floor: Annotated[
        Literal["auto", "posterior", "none"] | None,
        Field(description='Of "adaptive", "auto" by default: posterior where the kernel and the number of parameters need it.'),
    ] = None

    def build(self) -> NormEstimator:
        """As the library has it."""
        given: dict[str, Any] = {n: v for n in ("m", "gamma", "kappa", "alpha_bar") if (v := getattr(self, n)) is not None}
        if self.floor is not None:
            given["floor"] = {"auto": "auto", "posterior": PosteriorScenario(), "none": None}[self.floor]
        if self.type == "fixed":
            if self.value is None or given:
                raise InvalidValueError(f"A fixed norm has a value and nothing else, got {self.model_dump(exclude_none=True)}.")
            return Fixed(self.value)
        if self.value is not None:
            raise InvalidValueError(f"Only a fixed norm has a value, got {self.value!r} for {self.type!r}.")
        if self.type == "posterior":
            if self.alpha_bar is not None or self.floor is not None:
                raise InvalidValueError(
                    f"A posterior norm has no alpha_bar and no floor, got {self.model_dump(exclude_none=True)}: leave them out."
                )
            return PosteriorScenario(**given)
        return AdaptiveScenario(**given) if self.type == "adaptive" else Scenario(**given)


class Limit(Model):
    """A further output that must stay between `lower` and `upper`; what is left out is as for the objective."""

    lower: Number | None = None
    upper: Number | None = None
    unit: Unit = ""
    noise: Positive | None = None
    kernel: Kernel | None = None
    norm: Norm | None = None

    def build(self) -> Constraint:
        """As the library has it."""
        kernel = None if self.kernel is None else self.kernel.build()
        norm = None if self.norm is None else self.norm.build()
        return Constraint(self.lower, kernel, self.noise, norm, self.upper)


class InitialMeasurement(Model):
    """A measurement made before the run."""

    params: Values
    objective: Number
    constraints: Values = {}
    context: dict[str, Any] | None = None


class NewRun(Model):
    """A run to create. `threshold`: the objective must stay above it; null if only `constraints` limit the experiments."""

    name: Name
    parameters: Annotated[dict[Label, Parameter], Field(min_length=1, max_length=MOST_PARAMETERS)]
    threshold: Number | None = None
    unit: Annotated[Unit, Field(description="Of the objective.")] = ""
    constraints: Annotated[dict[Label, Limit], Field(max_length=MOST_LIMITS)] = {}
    kernel: Kernel = Kernel()
    norm: Annotated[Norm | None, Field(description="null: the library's default for this many parameters.")] = None
    noise: Positive = 0.01
    delta: Probability = 0.01
    min_width: Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)] = 0.1
    cubes: Literal["auto", "global"] = "auto"
    points_per_axis: Annotated[int, Field(ge=2, le=2000)] | None = None
    acquisition: Literal["auto", "directed", "joint", "balanced", "paper"] = "auto"
    stride: Scale | None = 0.5
    abort_radius: Annotated[float, Field(ge=0.0, le=10.0, allow_inf_nan=False)] = 0.25
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    initial: InitialMeasurement | Annotated[list[InitialMeasurement], Field(max_length=MOST_INITIAL)] = []
    title: Text = ""
    notes: Text = ""
    experiments: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    confirm: Annotated[bool, Field(description="Every trial needs an operator's approval.")] = False
    on_violation: Literal["stop", "continue"] = "stop"

    def build(self) -> tuple[SafeOptimizer, RunConfig]:
        """The optimizer with its initial measurements, and the configuration around it."""
        if self.points_per_axis and self.points_per_axis ** len(self.parameters) > MOST_POINTS:
            raise InvalidValueError(
                f"{self.points_per_axis} points along {len(self.parameters)} axes are more than {MOST_POINTS} in all: use fewer."
            )
        optimizer = SafeOptimizer(
            Box({name: (p.low, p.high) for name, p in self.parameters.items()}),
            self.threshold,
            kernel=self.kernel.build(),
            noise=self.noise,
            norm=None if self.norm is None else self.norm.build(),
            bound=MartingaleMixture(),
            delta=self.delta,
            cubes="auto" if self.cubes == "auto" else None,
            points_per_axis=self.points_per_axis,
            acquisition=self.acquisition,
            stride=self.stride,
            min_width=self.min_width,
            constraints={name: limit.build() for name, limit in self.constraints.items()},
            abort_radius=self.abort_radius,
            memory_budget=200_000_000,
            seed=self.seed,
        )
        given = self.initial if isinstance(self.initial, list) else [self.initial]
        optimizer.tell_many((m.params, m.objective, m.constraints, m.context) for m in given)
        units = {name: p.unit for name, p in self.parameters.items()} | {n: c.unit for n, c in self.constraints.items()}
        units = {name: unit for name, unit in {**units, "objective": self.unit}.items() if unit}
        config = RunConfig(self.title, units, self.experiments, self.confirm, self.on_violation, notes=self.notes)
        return optimizer, config


class Tell(Model):
    """A measurement: of the trial that is out, or of parameters that were run without asking."""

    trial: TrialId | None = None
    params: Values | None = None
    objective: Number
    constraints: Values = {}
    context: dict[str, Any] | None = None


class Abort(Model):
    """An experiment that failed or was stopped, by its trial or its parameters: others keep away from it."""

    trial: TrialId | None = None
    params: Values | None = None
    reason: Annotated[str, Field(min_length=1, max_length=1500)]


class OfTrial(Model):
    """The pending trial that is meant."""

    trial: TrialId


class OfTrialWithReason(Model):
    """The pending trial that is meant, and why."""

    trial: TrialId
    reason: Reason = ""


class Because(Model):
    """Why, for the record."""

    reason: Reason = ""


Seen = Annotated[
    int | None,
    Field(
        ge=0,
        le=2**31,
        description="The `seq` of the run that was looked at: 409 if it was paused, stopped or resumed since then.",
    ),
]


class Pause(Because):
    """Why, and up to which event the run was seen."""

    seen: Seen = None


class Void(Model):
    """The measurement that is taken back, and why."""

    number: Annotated[int, Field(ge=1, le=2**31, description="As `samples` gives it.")]
    reason: Annotated[str, Field(min_length=1, max_length=1500)]
    seen: Seen = None


class Resume(Because):
    """Why, up to which event the run was seen, and whether a violation that stopped it is accepted."""

    seen: Seen = None
    accept_violation: Annotated[bool, Field(description="Needed after a measurement outside a limit.")] = False


# -- what comes back -----------------------------------------------------------------------------------------------------


class Answer(BaseModel):
    """Part of an answer."""

    model_config = ConfigDict(extra="forbid")


class Interval(Answer):
    """Lower and upper bound; null: none."""

    lower: float | None
    upper: float | None


class TrialAnswer(Answer):
    """A trial and its certificate."""

    id: str
    params: dict[str, float]
    bounds: dict[str, Interval]
    norms: dict[str, float | None]
    cube: Annotated[dict[str, tuple[float, float]], Field(description="The sub-domain that certifies it, in user units.")]
    probability: Annotated[float, Field(description="Of the certificate.")]
    confidence: Annotated[float, Field(description="In that probability.")]
    refutations: int
    asked_at: str
    asked_by: str
    approved_at: str | None
    approved_by: str | None
    started_at: str | None
    out: Annotated[bool, Field(description="Handed to the plant, and nothing told about it yet.")]
    waiting: Annotated[bool, Field(description="An operator has to approve it first: do not run it.")]


class AskAnswer(Answer):
    """The trial to run, if `ready`. No trial: `status` and `reason` say why."""

    ready: bool
    trial: TrialAnswer | None
    status: str
    reason: str


class ReceiptAnswer(Answer):
    """What a measurement or an abort led to."""

    seq: int
    violated: dict[str, float]
    status: str
    repeated: bool


class DoneAnswer(Answer):
    """The run after a step."""

    seq: int
    status: str


class ParameterAnswer(Answer):
    """A parameter."""

    name: str
    low: float
    high: float
    unit: str


class OutputAnswer(Answer):
    """An output with its limits."""

    name: str
    lower: float | None
    upper: float | None
    noise: float
    unit: str


class StartAnswer(Answer):
    """The next parameters to start with: a person calls them safe, nothing certifies them."""

    id: str
    params: dict[str, float]
    number: Annotated[int, Field(description="Which repetition, from 1.")]
    repeats: int
    approved_by: str | None
    approved_at: str | None
    started_at: str | None
    out: bool
    waiting: bool


class StandingAnswer(Answer):
    """Where a run stands, for a person: in one word, such as open (nobody drives it), and who drives it in a sentence."""

    word: str
    text: str


class RunAnswer(Answer):
    """A run, without its data."""

    name: str
    title: str
    notes: str
    status: str
    driver: Annotated[str, Field(description="The process that drives it at this moment; empty: nobody does.")]
    standing: StandingAnswer
    asked_at: Annotated[str | None, Field(description="When a trial was last asked for or handed out.")]
    reason: str
    cause: Annotated[str, Field(description="Why nothing is asked for: paused, stopped, violation, ...; empty while it runs.")]
    advice: str
    seq: int
    created_at: str
    created_by: str
    changed_at: str
    parameters: list[ParameterAnswer]
    outputs: list[OutputAnswer]
    measurements: int
    experiments: int
    experiments_wanted: int | None
    aborted: Annotated[int, Field(description="Experiments without a measurement: aborted, or rejected trials.")]
    violations: list[int]
    voided: Annotated[list[int], Field(description="Numbers of the measurements that were taken back.")]
    doubtful: Annotated[list[str], Field(description="Trials that were certified with a measurement that was taken back later.")]
    confirm: bool
    on_violation: str
    probability: float
    confidence: float
    pending: TrialAnswer | None
    start: StartAnswer | None
    you: Annotated[str, Field(description="The name behind this request.")]
    role: str


class CreatedAnswer(RunAnswer):
    """A new run, and what deserves a second look before anything moves."""

    warnings: list[str]


class RunLine(Answer):
    """A run in the list."""

    name: str
    title: str
    status: str
    driver: Annotated[str, Field(description="The process that drives it at this moment; empty: nobody does.")]
    standing: StandingAnswer
    measurements: int
    violations: int
    waiting: bool
    changed_at: str


class Runs(Answer):
    """All runs, the newest first."""

    runs: list[RunLine]
    you: str
    role: str


class Measured(Answer):
    """One measurement."""

    number: int
    params: dict[str, float]
    values: dict[str, float]
    trial: str | None
    doubtful: Annotated[bool, Field(description="Its certificate rested on a measurement that was taken back later.")]
    outside: bool
    context: dict[str, Any] | None


class VoidedAnswer(Measured):
    """A measurement that was taken back: it does not count."""

    reason: str
    who: str
    at: str


class Aborted(Answer):
    """One experiment without a measurement: aborted, or a trial that was rejected."""

    params: dict[str, float]
    after: Annotated[int, Field(description="Number of the measurement before it.")]
    reason: str
    trial: str | None
    rejected: bool


class Samples(Answer):
    """Measurements, those that were taken back, and aborted experiments."""

    seq: int
    measurements: list[Measured]
    voided: list[VoidedAnswer]
    aborted: list[Aborted]


class BestAnswer(Answer):
    """The parameters to use: the best measured inside all limits, or certified ones that are surely better."""

    params: dict[str, float]
    lower: float | None
    mean: float | None
    upper: float | None
    measurements: int


class EventAnswer(Answer):
    """One entry of the record."""

    seq: int
    kind: str
    at: str
    who: str
    text: Annotated[str, Field(description="The entry in words.")]
    number: Annotated[int | None, Field(description="Of a measurement, as it was told.")]
    body: dict[str, Any]


class Events(Answer):
    """Part of the record; `last` is the number of its last event."""

    events: list[EventAnswer]
    last: int


class AxisAnswer(Answer):
    """A parameter on an axis of a slice, and where it was evaluated."""

    name: str
    values: list[float]


class SliceAnswer(Answer):
    """Mean, interval and sets along one or two parameters. Lists run over the x axis, and for each x over the y axis."""

    measurements: int
    output: str
    x: AxisAnswer
    y: AxisAnswer | None
    fixed: dict[str, float]
    mean: list[float | None]
    lower: list[float | None]
    upper: list[float | None]
    safe: list[bool]
    maximisers: Annotated[list[bool] | None, Field(description="null: too many grid points to tell.")]
    expanders: list[bool] | None
    limits: Interval


class SubDomainAnswer(Answer):
    """A sub-domain and its norm bounds, after so many measurements each."""

    lower: list[float]
    upper: list[float]
    steps: list[int]
    norms: dict[str, list[float | None]]


class RefutationAnswer(Answer):
    """A norm bound that the data refuted."""

    step: int
    output: str
    subdomain: int | None
    norm: float | None
    raised_to: float | None


class Norms(Answer):
    """The norm bounds B_t of all sub-domains over time."""

    measurements: int
    outputs: list[str]
    subdomains: list[SubDomainAnswer]
    certifying: int | None
    refutations: list[RefutationAnswer]


class ExportAnswer(Answer):
    """The whole record of a run."""

    name: str
    events: list[EventAnswer]


class Problem(Answer):
    """What was wrong and what to do."""

    status: int
    title: str
    detail: str
    trial: TrialAnswer | None = None
    options: list[str] | None = None
