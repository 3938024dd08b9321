"""Which programs this user has agreed to run, on this computer.

A run's record holds the command of its plant, and whoever may write to the database may change it: the record cannot vouch for
itself. What a user has given in a file of his own, or agreed to, stands in a file of his own, which nobody else may write.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safebo.runs.plant_spec import RECORD
from safebo.runs.storage import Store

RUNS_CODE = ("python", "command")
"""Kinds of plants that run a program of this computer."""


def needs_trust(plant: Mapping[str, Any]) -> bool:
    """Whether the plant of a record runs a program here."""
    return plant.get("type") in RUNS_CODE


def trusted(store: Store, plant: Mapping[str, Any]) -> bool:
    """Whether this user has agreed to this very plant, of a run of this database."""
    return not needs_trust(plant) or _seal(store, plant) in _known()


def trust(store: Store, plant: Mapping[str, Any]) -> None:
    """Remember that this user has agreed to it. Without a place to write, he is asked again."""
    if trusted(store, plant):
        return
    path = _file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w", encoding="ascii") as file:
            file.write(f"{_seal(store, plant)}\n")
    except OSError:
        return


def described(plant: Mapping[str, Any]) -> list[str]:
    """What would be run, a line each; control characters are spelled out."""
    names = {"command": "program", "callable": "function", "reset": "reset", "stop": "stop", "folder": "folder"}
    return [f"{name}: {json.dumps(plant[key])}" for key, name in names.items() if plant.get(key)]


def _file() -> Path:
    """The file of agreements; one digest a line."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "safebo" / "plants"


def _known() -> set[str]:
    """What was agreed to; nothing if somebody else may write there."""
    path = _file()
    try:
        for place in (path, path.parent):
            found = place.stat()
            if sys.platform != "win32" and (found.st_uid != os.getuid() or found.st_mode & 0o022):
                return set()
        return set(path.read_text(encoding="ascii", errors="replace").split())
    except OSError:
        return set()


def _seal(store: Store, plant: Mapping[str, Any]) -> str:
    spec = {key: value for key, value in plant.items() if key not in RECORD}
    return hashlib.sha256(json.dumps([store.identity, spec], sort_keys=True).encode()).hexdigest()
