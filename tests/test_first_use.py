"""The first process on a machine: the same bits as all later ones, and no cache is no reason not to compute."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from safebo import Box, Constraint, Matern, SafeOptimizer
from safebo.runs.prepare import prepare

RUN = """
import sys
from safebo import AdaptiveScenario, Box, Matern, PosteriorScenario, SafeOptimizer
for dim, given in (
    (1, {"norm": AdaptiveScenario(m=60, gamma=0.2, kappa=0.1)}),
    (2, {"norm": AdaptiveScenario(m=60, gamma=0.2, kappa=0.1, centres=200)}),
    (3, {"norm": AdaptiveScenario(m=60, gamma=0.2, kappa=0.1, centres=200)}),
):
    points = {1: 101, 2: 21, 3: 7}[dim]
    opt = SafeOptimizer(Box.unit(dim), 0.0, kernel=Matern(1.5, 0.4), seed=4, points_per_axis=points, **given)
    measure = lambda p: 1.0 - 2.0 * sum((v - 0.45) ** 2 for v in p.values())
    start = dict.fromkeys(opt.domain.names, 0.5)
    opt.tell(start, measure(start))
    for _ in range(3):
        trial = opt.ask()
        print(dim, trial.id, trial.norm.hex(), *(v.hex() for v in (*trial.x, trial.lower, trial.upper)))
        opt.tell(trial, measure(trial.params))
    print(dim, *(record.entry() for record in opt.state.records))
"""


def process(code, cache, **environment):
    return subprocess.run(
        [sys.executable, "-W", "ignore::safebo.exceptions.SettingsWarning", "-c", code],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache), **environment}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip


@pytest.mark.slow
def test_who_compiles_has_the_bits_of_who_loads(tmp_path):
    """They differed: reordered sums are reordered once more in code that is loaded. One thread is the third."""
    done = [process(RUN, tmp_path), process(RUN, tmp_path), process(RUN, tmp_path, NUMBA_NUM_THREADS="1")]
    assert [d.returncode for d in done] == [0, 0, 0], done[0].stderr
    assert "preparing" in done[0].stderr and "preparing" not in done[1].stderr
    assert done[0].stdout == done[1].stdout == done[2].stdout
    assert len(done[0].stdout.splitlines()) == 12


SMALL = """
import warnings
import numpy as np
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    from safebo.compute import backend
    for _ in range(2):
        print(backend().cholesky_solve(np.eye(2), np.ones((2, 3))).sum())
        print(backend().lower_envelope(np.ones((3, 3)), np.ones(2)).sum())
print([w.category.__name__ for w in found], [str(w.message)[:60] for w in found])
"""


def installed(tmp_path):
    """The package in a folder whose cache folders cannot be made: root may write anywhere else."""
    package = tmp_path / "lib" / "safebo"
    shutil.copytree(Path(__file__).parents[1] / "src" / "safebo", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "compute" / "__pycache__").write_text("not a folder")
    return {
        "PYTHONPATH": str(package.parent),
        "HOME": "/dev/null",
        "XDG_CACHE_HOME": "/dev/null/x",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def test_without_any_folder_for_the_cache_it_computes_and_says_so_once(tmp_path):
    done = process(SMALL, "/dev/null/x", **installed(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == ["6.0", "9.0"] * 2
    assert done.stdout.count("CacheWarning") == 1 and "Compiled code cannot be kept on disk" in done.stdout


def test_a_damaged_cache_is_replaced(tmp_path):
    assert process(SMALL, tmp_path).stdout.splitlines()[4] == "[] []"
    for pattern, damage in (("*.nbi", b""), ("*.nbi", b"nonsense"), ("*.nbc", b"nonsense")):
        files = [file for file in tmp_path.rglob(pattern) if "_solve" in file.name]
        assert files
        for file in files:
            file.write_bytes(damage)
        done = process(SMALL, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [*["6.0", "9.0"] * 2, "[] []"]
        assert all(len(file.read_bytes()) > 100 for file in files)  # compiled and stored again


def test_a_full_disk_is_no_reason_not_to_compute(tmp_path):
    full = SMALL.replace("import numpy as np", """import numpy as np
from numba.core import caching
def full(*given):
    raise OSError(28, "No space left on device")
caching.IndexDataCacheFile.save = full""")  # fmt: skip
    done = process(full, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:4] == ["6.0", "9.0"] * 2 and done.stdout.count("CacheWarning") == 1


TOML = """
[run]
name = "rig"
database = "runs.db"
experiments = 1
[parameters.a]
bounds = [0.0, 1.0]
[objective]
threshold = 0.0
[limits.heat]
upper = 5.0
[kernel]
lengthscale = 0.3
[start]
a = 0.5
[plant]
type = "python"
callable = "rig:measure"
timeout = 20.0
"""
RIG = 'def measure(params):\n    open("ran", "a").write("x")\n    return 0.9, {"heat": 1.0}\n'
BROKEN = """
import sys
from safebo.compute import fused_cpu
def fails(*given):
    raise RuntimeError("the compiler is broken")
fused_cpu._intersect = fails
from safebo.cli import main
sys.argv = ["safebo", *{command!r}]
main()
"""


@pytest.mark.parametrize("command", [["check", "rig.toml"], ["run", "rig.toml"]])
def test_what_cannot_be_computed_is_found_before_the_first_experiment(tmp_path, command):
    (tmp_path / "rig.toml").write_text(TOML)
    (tmp_path / "rig.py").write_text(RIG)
    done = subprocess.run(
        [sys.executable, "-c", BROKEN.format(command=command)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode != 0 and "the compiler is broken" in done.stderr
    assert not (tmp_path / "ran").exists() and not (tmp_path / "runs.db").exists()


def test_a_rehearsal_stays_inside_every_limit_and_leaves_nothing():
    limits = {
        "two": Constraint(-1.0, upper=0.5), "above": Constraint(upper=-3.0), "below": Constraint(2.0),
    }  # fmt: skip
    for threshold in (None, 5.0):
        opt = SafeOptimizer(Box.unit(1), threshold, constraints=limits, kernel=Matern(1.5, 0.3), points_per_axis=21)
        before = opt.state
        prepare(opt.state.settings)
        assert opt.state is before
