"""docs/command-line.md names every command, key and exit code, and nothing that does not exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from safebo.cli.base import MEANING, ORDER
from safebo.runs import config
from safebo.runs.plant_spec import KEYS
from safebo.runs.template import template

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")


def section(title):
    return re.split(r"\n##+ ", PAGE.split(f"# {title}\n")[1])[0]


def test_exit_codes():
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", section("Exit codes"), re.M))
    assert rows == {str(code.value): text for code, text in MEANING.items()}


def test_commands():
    for name in ORDER:
        assert re.search(rf"`{name}\b", section("Commands")), name


def keys(title):
    cells = re.findall(r"^\| (`[^|]*) \|", section(title), re.M)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("title", "table"),
    [
        ("`[run]`", "run"),
        ("`[kernel]`", "kernel"),
        ("`[algorithm]`", "algorithm"),
        ("`[objective]` and `[limits.NAME]`", "limits.x"),
    ],
)
def test_keys_of_the_file(title, table):
    text = f"[{table}]\nnonsense = 1\n"
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text)
    allowed = next(re.search(r"Allowed: (.*)\.$", message) for line, message in caught.value.problems if line == 2)
    assert keys(title) == set(allowed[1].split(", "))


def test_keys_of_plants():
    assert keys("`[plant]`") == {"type", *(key for kind in KEYS.values() for key in kind)}


def test_every_part_is_named():
    for kinds in (config.NORMS, config.BOUNDS, config.CUBES, config.KERNELS, config.PRESETS):
        for name in kinds:
            assert re.search(rf"[`\"]{name}[`\"]", PAGE) or name == "fixed", name
    assert {f.name for f in fields(config.Config)} >= {"run", "starts"}


def test_examples_of_the_template_are_explained():
    for key in re.findall(r"^(\w+) =", template("x"), re.M):
        assert f"`{key}`" in PAGE or key in ("kp", "kd", "bounds"), key
