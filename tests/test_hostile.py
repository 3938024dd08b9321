"""The attacks of benchmarks/hostile in their quick version: every defence holds."""

from __future__ import annotations

import importlib

import pytest

from benchmarks.hostile.__main__ import attacks


@pytest.mark.parametrize("name", attacks())
def test_a_defence_holds(name: str) -> None:
    rows = importlib.import_module(f"benchmarks.hostile.{name}").run(True)
    assert rows
    assert all(row["held"] for row in rows), rows
