"""The six environments of the benchmark: what is nominal, what changes, and what else defines the problem.

A policy is trained in the nominal environment and used in the changed one. MuJoCo models are changed in their XML file, before
they are compiled, so that masses and inertias follow the new geometry.
"""

from __future__ import annotations

import os
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safebo.exceptions import InvalidValueError, MissingExtraError
from safebo.extras import how_to_install


@dataclass(frozen=True)
class Edit:
    """One attribute of one geom of a MuJoCo model: the geom by its own name, or by the name of the body it belongs to."""

    geom: str
    attribute: str
    value: str


@dataclass(frozen=True)
class Training:
    """Soft actor-critic: environment steps, hidden layers, and the arguments of the trainer that are not its defaults.

    The actor is evaluated after `every` so many steps.
    """

    steps: int
    layers: tuple[int, ...] = (64, 64)
    every: int = 5000
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What is learned in the changed environment, and with what the methods of the paper learn it.

    biases        name -> (low, high), in units of the action; 0 is the policy as it was trained
    constants     of the score, see `scoring`
    horizon       steps of an episode
    episodes      per experiment
    noise         standard deviation of an experiment that is stated to the methods
    lengthscale   of the kernel, as a fraction of the biases' range
    cubes         N and Delta of Algorithm 4; from the paper
    points        per axis of every grid; from the paper
    """

    biases: Mapping[str, tuple[float, float]]
    constants: Mapping[str, float]
    horizon: int
    episodes: int
    noise: float
    lengthscale: float
    cubes: tuple[int, float]
    points: int


@dataclass(frozen=True)
class Environment:
    """One row of the table.

    options            of the Gymnasium environment, nominal and changed
    model, edits       the MuJoCo model and what changes in it
    changed_options    further options of the changed environment
    attributes         values set on the changed environment
    starts             range of the initial position, where the environment lets one choose it; it is uniform in it
    """

    name: str
    id: str
    task: Task
    training: Training
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    edits: tuple[Edit, ...] = ()
    changed_options: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, float] = field(default_factory=dict)
    starts: tuple[float, float] | None = None


_SDE = {
    "use_sde": True, "gamma": 0.9999, "tau": 0.01, "batch_size": 512, "ent_coef": 0.1, "train_freq": 32, "gradient_steps": 32,
    "learning_starts": 0, "buffer_size": 50_000, "policy": {"log_std_init": -3.67},
}  # fmt: skip
_LESS = {"train_freq": 4, "gradient_steps": 2, "learning_rate": 7e-4, "learning_starts": 4000}  # more data per update
_REAR = {"bthigh": "0.145", "bshin": "0.15", "bfoot": "0.094"}  # half-lengths that stay as they are
_ANKLES = ("left", "right", "third", "fourth")
_CHEETAH = ("bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot")
_ANT = ("hip_4", "ankle_4", "hip_1", "ankle_1", "hip_2", "ankle_2", "hip_3", "ankle_3")

ENVIRONMENTS: dict[str, Environment] = {
    row.name: row
    for row in (
        Environment(
            "cart_pole",
            "InvertedPendulum-v5",
            Task({"force": (-1.5, 1.5)}, {"reach": 0.5}, 1000, 3, 0.001, 0.2, (3, 0.1), 1000),
            Training(20_000, every=1000, settings={"learning_starts": 1000}),
            model="inverted_pendulum.xml",
            edits=(Edit("cpole", "fromto", "0 0 0 0.001 0 0.8"),),
        ),
        Environment(
            "mountain_car",
            "MountainCarContinuous-v0",
            Task({"force": (-0.6, 0.6)}, {"zero": 80.0, "one": 100.0}, 999, 20, 0.02, 0.2, (3, 0.1), 1000),
            Training(18_000, every=1000, settings=_SDE),
            attributes={"power": 0.0013},
            starts=(-0.6, -0.4),
        ),
        Environment(
            "swimmer",
            "Swimmer-v5",
            Task({"front": (-1.0, 1.0), "rear": (-1.0, 1.0)}, {"velocity": 3, "speed": 0.08}, 250, 14, 0.025, 0.2, (5, 0.1), 500),
            Training(100_000, settings={"gamma": 0.998, "tau": 0.01, "learning_rate": 1e-3, "learning_starts": 2000}),
            options={"frame_skip": 16, "max_episode_steps": 250},
            model="swimmer.xml",
            edits=(Edit("torso", "size", "0.3"), Edit("back", "size", "0.3")),
        ),
        Environment(
            "lunar_lander",
            "LunarLanderContinuous-v3",
            Task({"main": (-0.5, 0.5), "side": (-0.5, 0.5)}, {"waiting": 0.3}, 1000, 100, 0.065, 0.2, (5, 0.1), 500),
            Training(200_000, (128, 128), settings={"learning_rate": 1e-3, "tau": 0.01, "learning_starts": 5000}),
            changed_options={"enable_wind": True, "wind_power": 8.0, "turbulence_power": 0.0},
        ),
        Environment(
            "half_cheetah",
            "HalfCheetah-v5",
            Task(dict.fromkeys(_CHEETAH, (-2.0, 2.0)), {"pitch": 1.57, "speed": 1.0}, 500, 20, 0.05, 0.2, (10, 0.05), 8),
            Training(150_000, (128, 128), settings=_LESS),
            model="half_cheetah.xml",
            edits=tuple(Edit(geom, "size", f"0.066 {half}") for geom, half in _REAR.items()),
        ),
        Environment(
            "ant",
            "Ant-v5",
            Task(dict.fromkeys(_ANT, (-2.0, 2.0)), {"up": 0.0, "speed": 1.0}, 200, 30, 0.12, 0.2, (10, 0.05), 5),
            Training(300_000, (128, 128), settings=_LESS),
            options={
                "include_cfrc_ext_in_observation": False,
                "healthy_reward": 0.3,
                "healthy_z_range": (0.3, 1.0),
                "ctrl_cost_weight": 0.05,
            },
            model="ant.xml",
            edits=tuple(Edit(f"{leg}_ankle_geom", "size", "0.18") for leg in _ANKLES),
        ),
    )
}
"""All six, by name."""


def environment(name: str) -> Environment:
    """The row of this name."""
    if not isinstance(name, str) or name not in ENVIRONMENTS:
        raise InvalidValueError(f"No environment is called {name!r}; known are {', '.join(ENVIRONMENTS)}.")
    return ENVIRONMENTS[name]


def make(name: str, *, changed: bool, **options: Any) -> Any:
    """The Gymnasium environment, nominal or changed."""
    row = environment(name)
    gymnasium = require_gymnasium()
    with _without_deprecation() if row.model else nullcontext():
        return _made(gymnasium, row, changed, options)


def _made(gymnasium: Any, row: Environment, changed: bool, options: Mapping[str, Any]) -> Any:
    arguments = {**row.options, **options}
    if not changed:
        return gymnasium.make(row.id, **arguments)
    arguments |= row.changed_options
    if row.edits:
        with tempfile.TemporaryDirectory(prefix="safebo-") as folder:  # only this user can write there; the file is read once
            path = Path(folder) / row.model
            path.write_text(changed_model(row))
            made = gymnasium.make(row.id, xml_file=str(path), **arguments)
    else:
        made = gymnasium.make(row.id, **arguments)
    for attribute, value in row.attributes.items():
        if not hasattr(made.unwrapped, attribute):
            raise InvalidValueError(f"{row.id} has no attribute {attribute!r}.")
        setattr(made.unwrapped, attribute, value)
    if row.changed_options.get("enable_wind"):
        from safebo.problems.rl.wind import SteadyWind

        made = SteadyWind(made)
    return made


DEPRECATED = "compiler attribute 'settotalmass' is deprecated"
"""How MuJoCo's warning about Gymnasium's half cheetah begins; nobody here can do anything about it."""


@contextmanager
def _without_deprecation() -> Iterator[None]:
    """MuJoCo does not print that warning; all others are shown."""
    mujoco = require_mujoco()
    before = mujoco.get_mju_user_warning()

    def hear(text: str) -> None:
        if text.startswith(DEPRECATED):
            return
        if before is not None:
            before(text)
        else:
            sys.stderr.write(f"WARNING: {text}\n")

    mujoco.set_mju_user_warning(hear)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def changed_model(row: Environment) -> str:
    """The changed MuJoCo model as XML."""
    from gymnasium.envs import mujoco

    tree = ElementTree.parse(Path(mujoco.__file__).parent / "assets" / row.model)
    for edit in row.edits:
        geoms = tree.findall(f".//geom[@name='{edit.geom}']") or tree.findall(f".//body[@name='{edit.geom}']/geom")
        if len(geoms) != 1 or edit.attribute not in geoms[0].attrib:
            raise InvalidValueError(f"{row.model} has not exactly one geom {edit.geom!r} with {edit.attribute!r}.")
        geoms[0].set(edit.attribute, edit.value)
    return ElementTree.tostring(tree.getroot(), encoding="unicode")


def require_gymnasium() -> Any:
    """The module, or an error that says how to install it."""
    try:
        import gymnasium
    except ImportError as error:
        raise MissingExtraError(f"The RL benchmarks need Gymnasium ({error}): {how_to_install('rl')}.") from error
    return gymnasium


def require_mujoco() -> Any:
    """The module, or an error that says how to install it, or what is wrong with MUJOCO_GL, which it reads at import."""
    try:
        import mujoco
    except ImportError as error:
        raise MissingExtraError(f"This RL benchmark needs MuJoCo ({error}): {how_to_install('rl')}.") from error
    except Exception as error:
        backend = os.environ.get("MUJOCO_GL")
        raise InvalidValueError(f"MuJoCo does not start with MUJOCO_GL={backend!r} ({error}): unset it, or try egl.") from error
    return mujoco
