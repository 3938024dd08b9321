"""Plants from plain values."""

from __future__ import annotations

import sys

import pytest

from safebo.exceptions import ExperimentAborted, InvalidValueError, PlantError
from safebo.runs import Measurement
from safebo.runs.plant_spec import check_plant, load, make_plant

CODE = """
calls = []

def measure(params):
    return params["a"] * 2

def reset():
    calls.append("reset")

def stop():
    calls.append("stop")

class Rig:
    def reset(self): pass
    def run(self, params): return 7.0
    def emergency_stop(self): pass
    def close(self): pass

rig = Rig()
number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"plant_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(CODE)
    return tmp_path, name


def python(folder, what, **changes):
    place, name = folder
    return {"type": "python", "callable": f"{name}:{what}", "timeout": 5.0, "folder": str(place), **changes}


def test_functions(folder):
    plant = make_plant(python(folder, "measure", reset=f"{folder[1]}:reset", stop=f"{folder[1]}:stop"))
    plant.reset()
    assert plant.run({"a": 0.5}) == Measurement(1.0)
    plant.emergency_stop()
    assert sys.modules[folder[1]].calls == ["reset", "stop"]


@pytest.mark.parametrize("what", ["Rig", "rig"])
def test_plants(folder, what):
    plant = make_plant(python(folder, what))
    plant.reset()
    assert plant.run({"a": 0.5}) == Measurement(7.0)
    with pytest.raises(InvalidValueError, match="leave those keys out"):
        make_plant(python(folder, what, stop=f"{folder[1]}:stop"))


def test_what_cannot_be_loaded(folder):
    with pytest.raises(PlantError, match="has no 'nothing'"):
        make_plant(python(folder, "nothing"))
    with pytest.raises(InvalidValueError, match="neither a function nor a plant"):
        make_plant(python(folder, "number"))
    with pytest.raises(PlantError, match=r"no_such_module.*cannot be imported: ModuleNotFoundError.*looked for in"):
        load("no_such_module:f", "callable", str(folder[0]))


def test_commands_run_in_their_folder(tmp_path):
    (tmp_path / "rig.py").write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    r = {'id': m['id']}\n"
        "    if m['command'] == 'run': r['objective'] = 2 * m['params']['a']\n"
        "    print(json.dumps(r), flush=True)\n"
    )
    plant = make_plant({"type": "command", "command": [sys.executable, "rig.py"], "timeout": 20.0, "folder": str(tmp_path)})
    try:
        plant.reset()
        assert plant.run({"a": 0.5}) == Measurement(1.0)
    finally:
        plant.close()


def test_a_server_that_is_not_there():
    plant = make_plant({"type": "socket", "host": "127.0.0.1", "port": 1, "timeout": 1.0})
    with pytest.raises(ExperimentAborted, match="Nothing was sent"):
        plant.reset()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "type must be one of"),
        ({"type": "python"}, "needs callable and timeout"),
        ({"type": "python", "callable": "a:b", "timeout": 1, "port": 3}, "unknown key 'port'"),
        ({"type": "python", "callable": "a.b", "timeout": 1}, "module:function"),
        ({"type": "python", "callable": "a:b:c", "timeout": 1}, "module:function"),
        ({"type": "python", "callable": "a:b", "timeout": -1}, "timeout"),
        ({"type": "python", "callable": "a:b", "timeout": 1, "folder": 3}, "folder"),
        ({"type": "command", "command": ["a"], "timeout": 1, "persistent": 1}, "persistent"),
        ({"type": "command", "command": [], "timeout": 1}, "command"),
        ({"type": "socket", "host": "", "port": 3, "timeout": 1}, "host"),
        ({"type": "socket", "host": "x", "port": 3, "timeout": 1, "retries": -1}, "retries"),
    ],
)
def test_wrong_descriptions(spec, message):
    with pytest.raises(InvalidValueError, match=message):
        check_plant(spec)


@pytest.mark.parametrize("kind", ["http", "manual"])
def test_nothing_to_drive(kind):
    assert check_plant({"type": kind}) == {"type": kind}
    with pytest.raises(InvalidValueError, match="nothing to drive"):
        make_plant({"type": kind})
