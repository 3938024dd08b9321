"""The `safebo` command. Every command imports what it needs when it runs, so `safebo --help` stays quick."""

from safebo.cli import operate, operator, record, results, setup, studies
from safebo.cli.base import Code, app

__all__ = ["Code", "app", "main", "operate", "operator", "record", "results", "setup", "studies"]


def main() -> None:
    """Entry point."""
    app()
