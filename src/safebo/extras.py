"""How to install what an optional part of the package needs. safebo is on no package index: it is installed from its source."""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """The command that installs an optional extra, and where to give it."""
    return f"pip install '.[{extra}]' in the folder of safebo's source"
