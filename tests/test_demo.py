"""The demo and the examples run as printed."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from safebo.runs import Campaign, Store

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
    assert demo.main(["--experiments", "4", "--pace", "0", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for word in (
        "Algorithm 4",
        "SafeOpt, norm 1",
        "SafeOpt, norm 25",
        "unsafe",
        "reached",
        "results/",
        "demo.png",
        "report.html",
    ):
        assert word in printed
    assert re.search(r"Live page.*http://127\.0\.0\.1:\d+/", printed) and "4 of 4 experiments are done" in printed
    assert "<svg" in (tmp_path / "report.html").read_text() or "data:image" in (tmp_path / "report.html").read_text()
    with Store.open(tmp_path / "demo.db", create=False) as store:
        assert Campaign.open(store, "demo").ledger.experiments == 4
    assert re.search(r"Algorithm 4\s*│\s*4\s*│\s*0\s*│", printed)
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.size == (1950, 690)


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
