"""The demo and the examples run as printed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error"}


@pytest.fixture
def demo():
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["demo"]


def test_demo(demo, tmp_path, capsys):
    assert demo.main(["--experiments", "4", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for word in ("Algorithm 4", "SafeOpt, norm 1", "SafeOpt, norm 25", "unsafe", "reached", "results/", "demo.png", "run.gif"):
        assert word in printed
    assert re.search(r"Algorithm 4\s*│\s*4\s*│\s*0\s*│", printed)
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.size == (1950, 690)
    with Image.open(tmp_path / "run.gif") as gif:
        assert gif.n_frames == 5


def run(name):
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_ten_lines():
    printed = run("ten_lines.py")
    best = {name: float(value) for name, value in re.findall(r"'(\w+)': ([\d.]+)", printed)}
    assert abs(best["kp"] - 3.0) < 0.7 and abs(best["kd"] - 0.4) < 0.2


def test_two_limits():
    printed = run("two_limits.py")
    assert "violations in 20 experiments: 0" in printed
    assert abs(float(re.search(r"best: ([\d.]+) degrees", printed)[1]) - 85.0) < 8.0
