"""Text that is no text: encodings that do not fit, halves of characters, nesting without end."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from safebo import Box, Fixed, SafeOptimizer
from safebo.runs import Campaign, RunConfig, Store

OLD = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ASCII = {"PYTHONIOENCODING": "ascii"}
BYTES = b"\xff\xfe"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    opt = SafeOptimizer(Box({"kp": (0.0, 5.0)}), 0.0, norm=Fixed(5.0), cubes=None, points_per_axis=50)
    opt.tell({"kp": 2.0}, 0.8, context={"note": "Ω"})
    config = RunConfig(title="Ω rig", units={"kp": "Ω/°C"}, experiments=5)
    with Store.open(tmp_path / "safebo.db") as store:
        Campaign.create(store, "r", opt, config=config, who="jörg")
    return tmp_path


def call(folder: Path, *arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SAFEBO_", "PYTHONIO"))}
    command = [sys.executable, "-m", "safebo.cli", *arguments]
    return subprocess.run(command, cwd=folder, env={**clean, **environment}, capture_output=True, timeout=120)


@pytest.mark.skipif(os.name == "nt", reason="a terminal without UTF-8 of another kind")
@pytest.mark.parametrize("environment", [OLD, ASCII], ids=["LANG=C", "ascii"])
def test_a_terminal_that_cannot_show_a_unit_shows_an_escape(folder: Path, environment: dict[str, str]) -> None:
    for command in ("status", "best"):
        done = call(folder, command, "r", **environment)
        assert done.returncode == 0 and rb"kp = 2 \u03a9/\xb0C" in done.stdout, (command, done)
    done = call(folder, "export", "r", **environment)
    rows = list(csv.DictReader(io.StringIO(done.stdout.decode("utf-8"))))  # data are the same everywhere
    assert done.returncode == 0 and "jörg" in rows[0].values()


@pytest.mark.skipif(os.name == "nt", reason="arguments are text there")
@pytest.mark.parametrize(
    ("arguments", "environment", "what"),
    [
        (("status", BYTES), {}, rb"There is no run '\udcff\udcfe'"),
        (("stop", "r", "--reason", BYTES), {}, b"reason must be text"),
        (("pause", "r", "--who", BYTES), {}, b"who must be text"),
        (("pause", "r"), {"SAFEBO_WHO": "n\udcff"}, b"who must be text"),
        (("status", "r"), {"SAFEBO_DB": "postgresql://u\udcff@127.0.0.1:1/x"}, b"URL of the database is not text"),
        (("check", BYTES), {}, b"No such file"),
        (("import", "r", "latin.csv"), {}, b"latin.csv is not a text file in UTF-8"),
        (("import", "r", "deep.csv"), {}, b"deep.csv:2: the context is nested too deeply"),
        (("import", "r", "deep.json"), {}, b"nested at most 32 levels"),
        (("import", "r", "deeper.json"), {}, b"deeper.json is not JSON"),
        (("import", "r", "half.json"), {}, b"half of one"),
        (("check", "latin.toml"), {}, b"latin.toml:1: not a text file in UTF-8"),
        (("check", "deep.toml"), {}, b"nested too deeply"),
    ],
    ids=str,
)
def test_what_is_no_text_is_refused_in_a_sentence(
    folder: Path, arguments: tuple, environment: dict[str, str], what: bytes
) -> None:
    note = '[{"params": {"kp": 2.1}, "objective": 0.8, "context": {"a": %s}}]'
    (folder / "latin.csv").write_bytes('kp,objective,context\n2.1,0.8,"{""a"": ""ä""}"\n'.encode("latin-1"))
    (folder / "deep.csv").write_text('kp,objective,context\n2.1,0.8,"{""a"":%s}"\n' % ("[" * 5000 + "]" * 5000))
    (folder / "deep.json").write_text(note % ("[" * 900 + "]" * 900))
    (folder / "deeper.json").write_text("[" * 100_000)
    (folder / "half.json").write_text(note % '"\\ud800"')
    (folder / "latin.toml").write_bytes("# Verstärkung\n".encode("latin-1"))
    (folder / "deep.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    done = call(folder, *arguments, **environment)
    said = done.stdout + done.stderr
    assert done.returncode in (1, 2) and b"Traceback" not in said and what in said, said.decode("utf-8", "replace")[-1000:]
    with Store.open(folder / "safebo.db") as store:
        assert store.last("r") == 1
