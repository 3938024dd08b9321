"""The state of a training on disk. A kill at any moment leaves one that continues.

    out/state.json             settings, training curve, and the names and SHA-256 of the two files that belong together:
    out/checkpoint-STEPS.zip   the trainer
    out/replay-STEPS.pkl       its replay buffer

Both are written under new names; replacing state.json switches to them. Then the old ones are removed.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safebo.exceptions import InvalidValueError
from safebo.studies.common import Row, write_durably

CURVE = ("steps", "mean", "smallest", "seconds")
_FILES = r"(checkpoint-\d+\.zip|replay-\d+\.pkl)"


@dataclass
class State:
    """Settings and curve of the training in a folder; `files` are names and digests of trainer and replay buffer, if any."""

    folder: Path
    settings: dict[str, Any]
    curve: list[Row] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, settings: dict[str, Any]) -> State:
        """The state in a folder, a new one where there is none; refuses a training with other settings."""
        path, settings = folder / "state.json", json.loads(json.dumps(settings))
        if not path.exists():
            if (folder / "curve.csv").exists():
                raise InvalidValueError(
                    f"{folder} has a training curve but no state.json to continue from: choose another --out."
                )
            return cls(folder, settings)
        found = _read(path)
        _compare(folder, found["settings"], settings)
        return cls(folder, settings, found["curve"], found["files"])

    def load(self, trainer: Any, env: Any) -> Any:
        """The trainer with its replay buffer."""
        for name, digest in self.files.items():
            path = self.folder / name
            if not path.exists() or _digest(path) != digest:
                raise InvalidValueError(f"{path} is missing, truncated or not the file of this training: {self._advice}")
        checkpoint, replay = (self.folder / name for name in self.files)
        try:
            model = trainer.load(checkpoint, env=env, device="cpu")
            model.load_replay_buffer(replay)
        except Exception as error:  # other versions of the libraries
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise InvalidValueError(f"{checkpoint} cannot be continued ({reason[0]}): {self._advice}") from error
        return model

    def save(self, model: Any, row: Row) -> None:
        """Write both files, switch to them together with the curve's new row, and remove the old ones."""
        checkpoint, replay = f"checkpoint-{row['steps']}.zip", f"replay-{row['steps']}.pkl"
        write_durably(self.folder / checkpoint, model.save)
        write_durably(self.folder / replay, model.save_replay_buffer)
        files = {name: _digest(self.folder / name) for name in (checkpoint, replay)}
        state = {"settings": self.settings, "curve": [*self.curve, row], "files": files}
        text = json.dumps(state, indent=1) + "\n"
        write_durably(self.folder / "state.json", lambda file: file.write(text.encode()))
        self.curve, self.files = [*self.curve, row], files
        self.tidy()

    def tidy(self) -> None:
        """Remove trainers and replay buffers of other moments, and what was not written to its end."""
        for path in self.folder.iterdir():
            if re.fullmatch(rf"{_FILES}(\.partial)?", path.name) and path.name not in self.files:
                path.unlink()

    @property
    def _advice(self) -> str:
        return f"restore it, or move {self.folder} away to start again."


def _read(path: Path) -> dict[str, Any]:
    """The content of a state file."""
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        names = [re.fullmatch(_FILES, name) is not None for name in state["files"]]
        numbers = [isinstance(row[name], (int, float)) for row in state["curve"] for name in CURVE]
        if not (isinstance(state["settings"], dict) and names == [True, True] and numbers and all(numbers)):
            raise ValueError("unknown content")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidValueError(
            f"{path} is not the state of a training ({type(error).__name__}: {error}): move {path.parent} away to start again."
        ) from error
    return state


def _compare(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to continue with other settings than those of the folder."""
    names = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    if "environment" in names:  # then others differ as well
        names = ["environment"]
    if names:
        differences = ", ".join(f"{name} {found.get(name)!r}, wanted {wanted.get(name)!r}" for name in names)
        raise InvalidValueError(f"{folder} holds a training with other settings ({differences}): choose another --out.")


def _digest(path: Path) -> str:
    """SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()
