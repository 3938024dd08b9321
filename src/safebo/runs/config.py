"""A run described in a TOML file: parameters, limits, kernel, algorithm, start and plant.

Every value is checked by the same classes as in Python; what they refuse is reported with its line in the file. The keys are
described in docs/command-line.md, and `template.py` writes a file with all that are needed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from safebo import presets
from safebo.bounds import AbbasiYadkori, MartingaleMixture, Paper
from safebo.domain import Box, DoublingCubes, LocalCubes, SampleHull
from safebo.exceptions import ConfigError, InvalidValueError, SafeboWarning
from safebo.kernels import RBF, Matern, StationaryKernel
from safebo.norms import AdaptiveScenario, Fixed, Hoeffding, LSTMNorm, PosteriorScenario, Scenario
from safebo.norms.base import count
from safebo.optimizer import SafeOptimizer
from safebo.outputs import OBJECTIVE, Constraint, number
from safebo.runs.plant_spec import KEYS, KINDS, REQUIRED, check_plant
from safebo.runs.sections import Check, Document, Section, choice, flag, raw, text
from safebo.sets import RULES
from safebo.state import ACQUISITIONS

DATABASE = "safebo.db"
"""Where runs are kept unless something else is said."""

NORMS: dict[str, type] = {
    "adaptive": AdaptiveScenario,
    "posterior": PosteriorScenario,
    "scenario": Scenario,
    "fixed": Fixed,
    "hoeffding": Hoeffding,
}
FLOORS: dict[str, Callable[[], object]] = {
    "auto": lambda: "auto",
    "lstm": LSTMNorm,
    "none": lambda: None,
    "posterior": PosteriorScenario,
}
BOUNDS: dict[str, type] = {"martingale": MartingaleMixture, "abbasi-yadkori": AbbasiYadkori, "paper": Paper}
CUBES: dict[str, type] = {"doubling": DoublingCubes, "local": LocalCubes, "hull": SampleHull}
KERNELS: dict[str, type] = {"matern": Matern, "rbf": RBF}
PRESETS: dict[str, Callable[..., SafeOptimizer]] = {
    "default": SafeOptimizer,
    "algorithm_1": presets.algorithm_1,
    "algorithm_4": presets.algorithm_4,
    "safeopt": presets.safeopt,
    "pacsbo_2024": presets.pacsbo_2024,
}

_NAME = re.compile(r"[^\W_][\w. -]{0,99}")


@dataclass(frozen=True, eq=False)
class Config:
    """What a file describes. `run` are the arguments of `RunConfig`."""

    file: str
    source: str
    name: str
    database: str
    optimizer: SafeOptimizer
    starts: tuple[dict[str, float], ...]
    run: dict[str, Any]
    warnings: tuple[tuple[int, str], ...] = field(default=())  # line and text

    @property
    def plant(self) -> dict[str, Any]:
        """The plant's description."""
        plant: dict[str, Any] = self.run["plant"]
        return plant


def read(path: str | Path) -> Config:
    """The run that a file describes, or `ConfigError` with everything that is wrong in it."""
    file = Path(path)
    try:
        source = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [(1, f"not a text file in UTF-8: {error}.")]) from None
    return parse(source, str(path), folder=file.resolve().parent)


def parse(source: str, file: str = "safebo.toml", folder: Path | None = None) -> Config:
    """The run that a text describes; `folder` is where its relative paths start."""
    place = Path.cwd() if folder is None else folder
    document = Document(source, file)
    root = document.root
    run = _run(root)
    units: dict[str, str] = {}
    domain = _domain(root, units)
    arguments, constraints = _outputs(root, domain, units)
    preset, options = _algorithm(root)
    run["plant"] = _plant(root, place)
    starts = _starts(root, domain)
    root.done()
    document.raise_problems()
    assert domain is not None
    arguments |= options | {"seed": run.pop("seed")}
    if constraints:
        arguments["constraints"] = constraints
    optimizer, notices = _optimizer(document, domain, preset, arguments)
    database = run.pop("database")
    if "://" not in database:
        database = str(place / database)
    name = run.pop("name")
    run["units"] = units
    repeats = run.pop("start_repeats")
    if starts:
        run["plant"] |= {"start": starts, **({"repeats": repeats} if repeats > 1 else {})}
    return Config(file, source, name, database, optimizer, tuple(starts), run, tuple(notices))


# -- sections ----------------------------------------------------------------------------------------------------------------


def run_name(value: object, name: str = "name") -> str:
    """A validated name of a run."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidValueError(
            f"{name} must begin with a letter or digit and have up to 100 letters, digits, '.', '_', '-', blanks, got {value!r}."
        )
    return value


def _experiments(value: object, name: str) -> int:
    return count(value, name, 0)


def _run(root: Section) -> dict[str, Any]:
    section = root.table("run", required=True) or Section(root.document, (), {})
    if section.path and "name" not in section:
        section.complain('[run] needs a name, such as name = "pendulum".')
    found = {
        "name": section.take("name", run_name, "run"),
        "title": section.take("title", text, ""),
        "notes": section.take("notes", text, ""),
        "database": section.take("database", text, DATABASE),
        "experiments": section.take("experiments", _experiments),
        "confirm": section.take("confirm", flag, False),
        "on_violation": section.take("on_violation", choice(("stop", "continue")), "stop"),
        "seed": section.take("seed", _experiments, 0),
        "start_repeats": section.take("start_repeats", count, 1),
    }
    section.done()
    return found


def _domain(root: Section, units: dict[str, str]) -> Box | None:
    bounds: dict[str, tuple[float, float]] = {}
    sections = root.tables("parameters")
    for section in sections:
        name = str(section.path[-1])
        pair = section.take("bounds", _pair)
        ends = section.take("lower", number), section.take("upper", number)
        if "bounds" in section and ("lower" in section or "upper" in section):
            section.complain("give bounds = [low, high], or lower and upper, not both.", "lower", "upper")
        elif "bounds" not in section and ("lower" not in section or "upper" not in section):
            section.complain(f"the parameter {name!r} needs bounds = [low, high], or lower and upper.", "lower", "upper")
        else:
            pair = pair if "bounds" in section else ends
            with section.blame("bounds", "lower", "upper"):
                if pair is not None and None not in pair:
                    bounds |= Box({name: pair}).bounds
        _unit(section, name, units)
        section.done()
    if not sections:
        root.complain("no parameters: add a table such as [parameters.kp] with bounds = [0.0, 5.0].", "parameters")
    if len(bounds) < len(sections) or not bounds:
        return None
    try:
        return Box(bounds)
    except InvalidValueError as error:
        root.complain(str(error), "parameters")
        return None


def _pair(value: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidValueError(f"{name} must be two numbers, such as {name} = [0.0, 5.0], got {value!r}.")
    return value[0], value[1]


def _unit(section: Section, name: str, units: dict[str, str]) -> None:
    unit = section.take("unit", text)
    if unit:
        units[name] = unit


def _outputs(root: Section, domain: Box | None, units: dict[str, str]) -> tuple[dict[str, Any], dict[str, Constraint]]:
    """Arguments of the optimizer that belong to the objective, and the further limits."""
    names = () if domain is None else domain.names
    arguments: dict[str, Any] = {"threshold": None}
    kernel = root.table("kernel")
    if kernel is not None:
        arguments["kernel"] = _kernel(kernel, names)
    objective = root.table("objective")
    if objective is not None:
        _unit(objective, OBJECTIVE, units)
        arguments |= _taken(objective, ("threshold", "noise", "min_width"), arguments, number)
        objective.done()
    constraints = {}
    for section in root.tables("limits"):
        name = str(section.path[-1])
        if name in names or name == OBJECTIVE:
            section.complain(f"the name {name!r} is taken by a parameter or the objective: rename this limit.")
        _unit(section, name, units)
        given = _taken(section, ("threshold", "upper", "noise", "min_width", "delta"), {}, number)
        own = section.table("kernel") if "kernel" in section else None
        if own is not None:
            given["kernel"] = _kernel(own, names)
        given |= _parts(section)
        section.done("kernel", "norm", "bound")
        with section.blame(*given):
            if any(given.get(key) is not None for key in ("threshold", "upper")) or not {"threshold", "upper"} & set(given):
                constraints[name] = Constraint(**given)  # a limit that was no number has been complained about
    if arguments["threshold"] is None and "limits" not in root and "threshold" not in (objective.content if objective else {}):
        root.complain(
            "nothing is limited: give [objective] a threshold, or add a limit such as [limits.torque] with upper = 2.0.",
            "objective",
        )
    return arguments, constraints


def _taken(section: Section, keys: tuple[str, ...], defaults: Mapping[str, Any], check: Check[Any] = raw) -> dict[str, Any]:
    found = {key: section.take(key, check, defaults.get(key)) for key in keys}
    return {key: value for key, value in found.items() if key in section or key in defaults}


def _kernel(section: Section, names: tuple[str, ...]) -> StationaryKernel | None:
    cls = KERNELS[section.take("type", choice(KERNELS), "matern")]
    options = _taken(section, ("nu", "outputscale") if cls is Matern else ("outputscale",), {})
    if cls is RBF and "nu" in section:
        section.take("nu", raw)
        section.complain("an RBF kernel has no nu: leave it out, or choose type = 'matern'.", "nu")
    scale = section.take("lengthscale", raw)
    if isinstance(scale, Mapping):
        unknown, missing = [n for n in scale if n not in names], [n for n in names if n not in scale]
        if not names:  # they are wrong themselves
            scale = None
        elif unknown or missing:
            section.complain(
                f"lengthscale must name every parameter {list(names)}: unknown {unknown}, missing {missing}.", "lengthscale"
            )
            scale = None
        else:
            scale = tuple(scale[name] for name in names)
    elif isinstance(scale, list):
        if names and len(scale) != len(names):
            section.complain(
                f"lengthscale has {len(scale)} numbers, there are {len(names)} parameters {list(names)}.", "lengthscale"
            )
        scale = tuple(scale)
    section.done()
    with section.blame("lengthscale", "nu", "outputscale"):
        return cls(**options, **({} if scale is None else {"lengthscale": scale}))  # type: ignore[no-any-return]
    return None


def _part(section: Section, key: str, kinds: Mapping[str, type]) -> Any:
    """A norm estimator, confidence bound or locality: its name, or a table with its type and options."""
    value = section.take(key, raw)
    if not isinstance(value, Mapping):
        with section.blame(key):
            return kinds[choice(kinds)(value, key)]()
        return None
    table = section.table(key)
    assert table is not None
    if "type" not in table:
        table.complain(f"{key} needs a type, one of {', '.join(map(repr, kinds))}.")
        return None
    cls = kinds.get(table.take("type", choice(kinds)) or "")
    if cls is None:
        return None
    allowed = [f.name for f in fields(cls) if f.init]
    options = _taken(table, tuple(name for name in allowed if name != "floor"), {})
    if "floor" in allowed and (floor := table.take("floor", choice(FLOORS))) is not None:
        options["floor"] = FLOORS[floor]()
    table.done()
    missing = {"value"} - set(options) if cls is Fixed else set()
    if missing:
        table.complain("a fixed norm needs its value, such as norm = { type = 'fixed', value = 5.0 }.")
        return None
    with table.blame(*options):
        return cls(**options)
    return None


def _parts(section: Section) -> dict[str, Any]:
    """The norm and the bound of an output, where they are given; a number is a guessed norm."""
    found: dict[str, Any] = {}
    if "norm" in section:
        value = section.content["norm"]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found["norm"] = section.take("norm", lambda v, _: Fixed(v))
        else:
            found["norm"] = _part(section, "norm", NORMS)
    if "bound" in section:
        found["bound"] = _part(section, "bound", BOUNDS)
    return found


def _algorithm(root: Section) -> tuple[str, dict[str, Any]]:
    section = root.table("algorithm")
    if section is None:
        return "default", {}
    preset = section.take("preset", choice(PRESETS), "default")
    options = _parts(section)
    if preset == "safeopt" and "norm" not in section:
        section.complain("the preset 'safeopt' needs the guessed norm, such as norm = 5.0.", "preset")
    if "cubes" in section:
        if section.content["cubes"] in ("auto", "none"):
            options["cubes"] = {"auto": "auto", "none": None}[section.take("cubes", text)]
        else:
            options["cubes"] = _part(section, "cubes", {**CUBES, "auto": type(None), "none": type(None)})
    for key, words in (("safe_set", RULES), ("acquisition", ("auto", *ACQUISITIONS))):
        if key in section:
            options[key] = section.take(key, choice(words))
    if "stride" in section:
        options["stride"] = section.take("stride", _stride)
    if "falsify" in section:
        options["falsify"] = section.take("falsify", flag)
    if "points_per_axis" in section:
        points = section.take("points_per_axis", raw)
        options["points_per_axis"] = tuple(points) if isinstance(points, list) else points
    if "screening" in section and section.take("screening", choice(("lstm",))) is not None:
        options["screening"] = LSTMNorm()
    options |= _taken(section, ("delta", "abort_radius", "memory_budget", "refutation_margin"), {})
    section.done("norm", "bound", "cubes", "safe_set", "acquisition", "stride", "falsify", "points_per_axis", "screening")
    return preset, options


def _stride(value: Any, name: str) -> Any:
    if value == "none":
        return None
    if isinstance(value, str):
        raise InvalidValueError(f"{name} must be a positive number of lengthscales, or 'none', got {value!r}.")
    return value


def _starts(root: Section, domain: Box | None) -> list[dict[str, float]]:
    value = root.take("start", raw)
    many = isinstance(value, list)
    entries = value if many else [value] if value is not None else []
    found = []
    for place, entry in enumerate(entries):
        path: tuple[str | int, ...] = ("start", place) if many else ("start",)
        if not isinstance(entry, Mapping):
            root.document.complain(path, f"[start] must name a value for every parameter, got {entry!r}.")
            continue
        if domain is None:
            continue
        section = Section(root.document, path, entry)
        with section.blame(*entry):
            found.append(domain.as_dict(domain.point(entry)))
    return found


def _plant(root: Section, folder: Path) -> dict[str, Any]:
    section = root.table("plant")
    if section is None:
        return {"type": "manual"}
    kind = section.take("type", choice(KINDS))
    if kind is None:
        if "type" not in section:
            section.complain(f"[plant] needs a type, one of {', '.join(map(repr, KINDS))}.")
        return {"type": "manual"}
    spec = {"type": kind, **_taken(section, KEYS[kind], {})}
    before = len(root.document.problems)
    section.done()
    missing = [key for key in REQUIRED[kind] if key not in section]
    if missing:
        section.complain(f"a {kind} plant needs {' and '.join(missing)}.")
    if "folder" in KEYS[kind] and isinstance(spec.get("folder", ""), str):
        spec["folder"] = str(folder / spec["folder"]) if "folder" in spec else str(folder)
    if len(root.document.problems) == before:
        with section.blame(*spec):
            return check_plant(spec)
    return spec


# -- the optimizer -----------------------------------------------------------------------------------------------------------


def _optimizer(
    document: Document, domain: Box, preset: str, arguments: dict[str, Any]
) -> tuple[SafeOptimizer, list[tuple[int, str]]]:
    """The optimizer and its warnings, each with the line that it speaks of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            optimizer = PRESETS[preset](domain, **arguments)
        except InvalidValueError as error:
            document.complain(_place(document, str(error)), str(error))
            document.raise_problems()
            raise
    notices = [w for w in caught if issubclass(w.category, SafeboWarning)]
    return optimizer, [(document.line(_place(document, str(w.message))), str(w.message)) for w in notices]


def _place(document: Document, message: str) -> tuple[str | int, ...]:
    """The path that a message of the optimizer speaks of: the key it names, in the table of the output it names."""
    content = document.root.content
    quoted = re.findall(r"'([^']*)'", message)
    tables: list[tuple[str, ...]] = [("limits", name) for name in quoted if name in content.get("limits", {})]
    tables += [("limits", name) for name in content.get("limits", {}) if "constraints" in message]
    tables += [(*table, "kernel") for table in tables]
    tables += [("objective",)] if OBJECTIVE in quoted or not tables else []
    tables += [("kernel",), ("algorithm",), ("run",), ("objective",)]
    for table in tables:
        found: Any = content
        for key in table:
            found = found.get(key, {}) if isinstance(found, Mapping) else {}
        for key in found:
            if re.search(rf"\b{re.escape(key)}\b", message):
                return (*table, key)
    return tables[0] if tables[0][0] in content else ()
