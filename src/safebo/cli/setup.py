"""Commands that come before a run: init and check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from safebo.cli.base import SETUP, Force, Json, app, console, emit, write

if TYPE_CHECKING:
    from safebo.runs.config import Config


@app.command(rich_help_panel=SETUP)
def init(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("safebo.toml"),
    name: Annotated[Optional[str], typer.Option(help="Name of the run; default: that of the file.", show_default=False)] = None,
    plant: Annotated[str, typer.Option(help="python, command, socket, http or manual.")] = "python",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a commented TOML file, and beside it a simulated experiment where the plant is Python or a program."""
    from safebo.runs.template import PROGRAMS, template

    text = template(name if name is not None else file.stem, plant, file.name)
    write(file, text, force=force)
    beside, content = PROGRAMS.get(plant, ("", ""))
    script = file.parent / beside
    simulated = bool(beside) and not script.exists()
    if simulated:
        write(script, content, force=False)
    if as_json:
        emit({"files": [str(file), *([str(script)] if simulated else [])]})
        return
    out = console()
    out.print(f"wrote {file}", markup=False)
    if simulated:
        out.print(f"wrote {script}: a simulated experiment to try it with", markup=False)
    out.print(f"next: edit it, then `safebo check {file}` and `safebo run {file}`", markup=False)


@app.command(rich_help_panel=SETUP)
def check(file: Annotated[Path, typer.Argument(help="The TOML file.")] = Path("safebo.toml"), as_json: Json = False) -> None:
    """Validate a TOML file, and print what will be guaranteed. Nothing is stored, imported or connected."""
    from safebo.runs import config

    read = config.read(file)
    if as_json:
        emit(document(read))
    else:
        show(read)


def warnings_of(read: Config) -> list[str]:
    """Warnings with their lines, and what else deserves a second look."""
    from safebo.runs import describe

    noted = {text: f"line {line}: {text}" for line, text in read.warnings}
    cautions = describe.cautions(read.optimizer.state.settings, read.run)
    return [noted.get(text, text) for text in dict.fromkeys([*noted, *cautions])]


def document(read: Config) -> dict[str, Any]:
    """What `check --json` prints."""
    from safebo.runs import describe

    settings = read.optimizer.state.settings
    given = read.optimizer.guarantee
    units = read.run["units"]
    return {
        "file": read.file,
        "name": read.name,
        "database": read.database,
        "parameters": {n: {"bounds": list(b), "unit": units.get(n, "")} for n, b in settings.domain.bounds.items()},
        "outputs": {
            o.name: {
                "threshold": o.lower_limit,
                "upper": o.upper_limit,
                "noise": o.noise,
                "min_width": o.min_width,
                "unit": units.get(o.name, ""),
            }
            for o in settings.outputs
        },
        "guarantee": {
            "probability": given.probability,
            "confidence": given.confidence,
            "shares": {n: dict(zip(("gamma", "delta", "kappa"), s, strict=True)) for n, s in given.shares.items()},
            "text": describe.promise(settings),
            "assumptions": describe.assumptions(settings),
        },
        "differences": [vars(d) for d in describe.differences(settings)],
        "start": list(read.starts),
        "plant": {k: v for k, v in read.plant.items() if k != "start"},
        "experiments": read.run["experiments"],
        "confirm": read.run["confirm"],
        "on_violation": read.run["on_violation"],
        "warnings": warnings_of(read),
    }


def show(read: Config) -> None:
    """What `check` prints."""
    from rich.markup import escape
    from rich.table import Table

    from safebo.runs import describe

    out = console()
    settings, units = read.optimizer.state.settings, read.run["units"]

    def table(title: str, *columns: str) -> Table:
        return Table(
            *columns, title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 3, 0, 0)
        )

    def cells(*texts: str) -> list[str]:
        return [escape(text) for text in texts]

    out.print(
        f"[bold green]{escape(read.file)} is complete.[/] Run {escape(repr(read.name))}, stored in {escape(read.database)}.\n"
    )
    parameters = table("Parameters", "name", "from", "to", "unit", "start")
    for name, (low, high) in settings.domain.bounds.items():
        starts = ", ".join(f"{s[name]:g}" for s in read.starts)
        parameters.add_row(*cells(name, f"{low:g}", f"{high:g}", units.get(name, ""), starts or "-"))
    out.print(parameters)
    out.print()
    outputs = table("Measurements", "name", "must be", "noise", "known to within", "kernel")
    for o in settings.outputs:
        limit = describe.limits(o, units.get(o.name))
        outputs.add_row(
            *cells(
                o.name, limit, f"{o.noise:g}", f"{o.min_width:g}", describe.kernel_text(o, settings.domain.names)
            )
        )  # fmt: skip
    out.print(outputs)
    out.print("\n[bold]What is guaranteed[/]")
    for sentence in describe.promise(settings):
        out.print(escape(sentence))
    shares = table("", "limit", "norm too small (gamma)", "noise (delta)", "unlucky draw (kappa)")
    for name, share in read.optimizer.guarantee.shares.items():
        shares.add_row(*cells(name, *(f"{part:g}" for part in share)))
    out.print(shares)
    out.print("It rests on this:")
    for text in describe.assumptions(settings):
        out.print(f"  - {escape(text)}")
    different = describe.differences(settings)
    if different:
        out.print("\n[bold]Settings that are not the defaults[/]")
        for d in different:
            out.print(f"  {escape(d.name)} = {escape(d.value)} (default {escape(d.default)})")
    run = read.run
    number = "until nothing is left" if run["experiments"] is None else str(run["experiments"])
    consent = "a person approves every one" if run["confirm"] else "without asking"
    after = {"stop": "stops the run", "continue": "is recorded, and the run goes on"}[run["on_violation"]]
    out.print(f"\n[bold]Plant[/] {escape(describe.plant_text(read.plant))}")
    out.print(f"Experiments: {number}, {consent}. A measurement outside a limit {after}.")
    for text in warnings_of(read):
        out.print(f"[bold yellow]warning:[/] {escape(text)}")
