"""Attacks on what stands: each module has `run(quick) -> rows` and a first line that says what it attacks."""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]
"""One line of a table each: what was attacked, how often, what happened, and `held`: whether the defence did."""
