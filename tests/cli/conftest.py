"""A folder with a small run: one parameter, one limit, a guessed norm, so that every experiment takes milliseconds."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from safebo.cli import app

TOML = """\
[run]
name = "small"
title = "A <small> run"
experiments = 2

[parameters.a]
bounds = [0.0, 1.0]
unit = "V"

[objective]
threshold = 0.0
min_width = 0.01

[limits.heat]
upper = 1.0
unit = "K"

[algorithm]
norm = 1.0
points_per_axis = 30

[start]
a = 0.5

[plant]
type = "python"
callable = "rig:measure"
stop = "rig:stop"
timeout = 20.0
"""

RIG = """\
import os, time

def measure(params):
    with open("ran", "a") as file:
        print(params["a"], file=file, flush=True)
    with open("ran") as file:
        number = len(file.readlines())
    if os.environ.get("HANG") == str(number):
        for _ in range(1200):
            time.sleep(0.05)
            if os.path.exists("stopped"):
                raise RuntimeError("the motor is off")
    if os.environ.get("FAIL") == str(number):
        raise RuntimeError("the arm is blocked")
    heat = 2.0 if os.environ.get("HOT") == str(number) else 0.25
    return {"objective": 0.5 + 0.1 * params["a"], "constraints": {"heat": heat}}

def stop():
    open("stopped", "a").close()
"""


class Folder:
    """Where the run is, and a way to give commands."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments, code=0, input=None):
        result = CliRunner().invoke(app, [str(a) for a in arguments], input=input, catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    def json(self, *arguments, code=0):
        """Everything on standard output is one JSON document."""
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def ran(self):
        file = self.path / "ran"
        return [float(line) for line in file.read_text().split()] if file.exists() else []

    def edit(self, old, new):
        text = (self.path / "small.toml").read_text()
        assert old in text
        (self.path / "small.toml").write_text(text.replace(old, new))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("SAFEBO_DB", "SAFEBO_WHO", "HANG", "FAIL", "HOT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "small.toml").write_text(TOML)
    (tmp_path / "rig.py").write_text(RIG)
    yield Folder(tmp_path)
    sys.modules.pop("rig", None)
    sys.modules.pop("experiment", None)
