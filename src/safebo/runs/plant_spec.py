"""Plants from a description in plain values, as it stands in a configuration file and in a run's record."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from safebo.exceptions import InvalidValueError, PlantError
from safebo.norms.base import count
from safebo.runs.keeper import GRACE
from safebo.runs.lines import seconds_of
from safebo.runs.plants import CallablePlant, Plant, Watchdog
from safebo.runs.remote import SocketPlant, SubprocessPlant

KINDS: dict[str, str] = {
    "python": "a Python function or plant, called in this process",
    "command": "a program, one line of JSON in, one line out",
    "socket": "a rig's server at host:port, the same lines over TCP",
    "http": "a client that polls `safebo serve`",
    "manual": "a person who runs the experiment and enters the measurement",
}

KEYS: dict[str, tuple[str, ...]] = {
    "python": ("callable", "reset", "stop", "timeout", "reset_timeout", "stop_timeout", "folder"),
    "command": ("command", "stop", "persistent", "timeout", "reset_timeout", "retries", "retry_wait", "folder"),
    "socket": ("host", "port", "timeout", "reset_timeout", "stop_timeout", "retries", "retry_wait"),
    "http": ("timeout",),
    "manual": (),
}

RECORD = ("start", "repeats", "approved", "sent")
"""Keys of a run's record beside those, see `starts`."""

REQUIRED: dict[str, tuple[str, ...]] = {
    "python": ("callable", "timeout"),
    "command": ("command", "timeout"),
    "socket": ("host", "port", "timeout"),
    "http": (),
    "manual": (),
}

MARGIN = 5.0
"""Seconds that the watchdog waits longer than the plant itself, whose own message says more."""


def check_plant(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A validated copy of a plant's description; nothing is started, imported or connected."""
    kind = spec.get("type")
    if kind not in KINDS:
        raise InvalidValueError(f"type must be one of {', '.join(map(repr, KINDS))}, got {kind!r}.")
    unknown = [key for key in spec if key not in ("type", *RECORD, *KEYS[kind])]
    if unknown:
        raise InvalidValueError(f"unknown key {unknown[0]!r} of a {kind} plant. Allowed: {', '.join(('type', *KEYS[kind]))}.")
    missing = [key for key in REQUIRED[kind] if key not in spec]
    if missing:
        raise InvalidValueError(f"a {kind} plant needs {' and '.join(missing)}.")
    for key in ("timeout", "reset_timeout", "stop_timeout", "retry_wait"):
        if key in spec:
            seconds_of(spec[key], key)
    if "retries" in spec:
        count(spec["retries"], "retries", 0)
    if not isinstance(spec.get("persistent", True), bool):
        raise InvalidValueError(f"persistent must be true or false, got {spec['persistent']!r}.")
    if not isinstance(spec.get("folder", ""), str):
        raise InvalidValueError(f"folder must be text in quotes, got {spec['folder']!r}.")
    if kind == "python":
        for key in ("callable", "reset", "stop"):
            if key in spec:
                _parts(spec[key], key)
    elif kind in ("command", "socket"):
        _remote(spec)
    return dict(spec)


def make_plant(spec: Mapping[str, Any]) -> Watchdog:
    """The plant of a description, watched. Python modules are imported here; nothing is connected before its `reset`."""
    checked = check_plant(spec)
    kind = checked["type"]
    if kind in ("http", "manual"):
        raise InvalidValueError(f"A plant of type {kind!r} is {KINDS[kind]}: there is nothing to drive from here.")
    plant = _python(checked) if kind == "python" else _remote(checked)
    margin = 0.0 if kind == "python" else MARGIN
    reset_timeout = checked.get("reset_timeout", checked["timeout"])
    stop_timeout = checked.get("stop_timeout", 5.0) if kind == "python" else 3.0 * checked.get("stop_timeout", GRACE) + MARGIN
    return Watchdog(plant, timeout=checked["timeout"] + margin, reset_timeout=reset_timeout + margin, stop_timeout=stop_timeout)


def _remote(spec: Mapping[str, Any]) -> Plant:
    times = {key: spec[key] for key in ("timeout", "reset_timeout") if key in spec}
    if spec["type"] == "socket":
        times |= {key: spec[key] for key in ("stop_timeout",) if key in spec}
        return SocketPlant(spec["host"], spec["port"], **times)
    return SubprocessPlant(
        spec["command"], persistent=spec.get("persistent", True), stop=spec.get("stop"), folder=spec.get("folder"), **times
    )


def _parts(value: object, name: str) -> tuple[str, str]:
    module, _, function = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not all(part and all(piece.isidentifier() for piece in part.split(".")) for part in (module, function)):
        raise InvalidValueError(f'{name} must name a function as "module:function", got {value!r}.')
    return module, function


def load(value: object, name: str, folder: str | None = None) -> Any:
    """What "module:function" names; modules are also looked for in `folder`."""
    module_name, function = _parts(value, name)
    place = os.path.abspath(folder or ".")
    if place not in sys.path:
        sys.path.insert(0, place)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise PlantError(
            f"The module {module_name!r} of {name} = {value!r} cannot be imported: {type(error).__name__}: {error}. "
            f"It was looked for in {place} and among the installed packages."
        ) from error
    for part in function.split("."):
        if not hasattr(found, part):
            raise PlantError(f"{name} = {value!r}: {getattr(found, '__file__', module_name)} has no {part!r}.")
        found = getattr(found, part)
    return found


def _python(spec: Mapping[str, Any]) -> Plant:
    """A function, or a plant: an object with reset, run, emergency_stop and close, or a class of such."""
    folder = spec.get("folder")
    found = load(spec["callable"], "callable", folder)
    if isinstance(found, type):
        found = found()
    if isinstance(found, Plant):
        if "reset" in spec or "stop" in spec:
            raise InvalidValueError(f"{spec['callable']!r} is a plant with a reset and a stop of its own: leave those keys out.")
        return found
    if not callable(found):
        raise InvalidValueError(f"callable = {spec['callable']!r} names {found!r}, which is neither a function nor a plant.")
    others: dict[str, Callable[[], object]] = {}
    for key, argument in (("reset", "reset"), ("stop", "emergency_stop")):
        if key in spec:
            others[argument] = load(spec[key], key, folder)
    return CallablePlant(found, **others)
