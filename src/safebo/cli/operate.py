"""Commands that run experiments: run and resume."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from safebo.cli.base import RUN, Code, Database, Json, Run, Who, app, console, emit, opened, place

if TYPE_CHECKING:
    from safebo.runs import Campaign, Store
    from safebo.runs.operate import Result

Experiments = Annotated[
    Optional[int], typer.Option(min=0, help="How many experiments in all; stored with the run.", show_default=False)
]
Confirm = Annotated[
    Optional[bool],
    typer.Option(
        "--confirm/--no-confirm", help="Whether a person approves every experiment; stored with the run.", show_default=False
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="End with code 5 instead of waiting for an approval.")]


@app.command(rich_help_panel=RUN)
def run(
    file: Annotated[Path, typer.Argument(help="The TOML file.")] = Path("safebo.toml"),
    name: Annotated[Optional[str], typer.Option(help="Another name than in the file.", show_default=False)] = None,
    db: Database = None,
    experiments: Experiments = None,
    confirm: Confirm = None,
    data: Annotated[
        Optional[Path],
        typer.Option("--import", help="Earlier measurements, CSV or JSON; see `safebo import`.", show_default=False),
    ] = None,
    no_wait: NoWait = False,
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Make a new run from a TOML file, and run its experiments.

    Every step is stored before it happens. Ctrl-C stops the plant; `safebo resume` goes on.
    """
    from safebo.cli.setup import warnings_of
    from safebo.exceptions import InvalidValueError
    from safebo.runs import Campaign, RunConfig, Store, config, transfer
    from safebo.runs.prepare import prepare
    from safebo.runs.trust import trust

    read = config.read(file)
    changes = {"experiments": experiments, "confirm": confirm}
    settings = RunConfig(**{**read.run, **{key: value for key, value in changes.items() if value is not None}})
    rows = transfer.read_measurements(data, read.optimizer.state.settings) if data is not None else []
    for text in warnings_of(read):
        typer.echo(f"warning: {text}", err=True)
    called = config.run_name(name) if name is not None else read.name
    prepare(read.optimizer.state.settings)
    plant = _plant(settings.plant)
    store = Store.open(db or read.database)
    try:
        if called in store.names():
            raise InvalidValueError(
                f"Run {called!r} exists in {store.where}: `safebo resume {place(called, db)}` goes on, --name starts another."
            )
        if rows:  # what was measured before the run was made says something, and stops nothing
            read.optimizer.tell_many(rows)
        campaign = Campaign.create(store, called, read.optimizer, config=settings, source=read.source, who=who)
        trust(store, settings.plant)
        _go(campaign, plant, who, as_json=as_json, waits=not no_wait, db=db or read.database)
    finally:
        store.close()


@app.command(rich_help_panel=RUN)
def resume(
    run: Run,
    db: Database = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="The pending experiment was certainly not executed: run it now.")
    ] = False,
    abandon: Annotated[
        Optional[str],
        typer.Option(metavar="REASON", help="Give the pending experiment up; others keep away from it.", show_default=False),
    ] = None,
    accept_violation: Annotated[
        bool, typer.Option("--accept-violation", help="Go on although a measurement was outside a limit.")
    ] = False,
    experiments: Experiments = None,
    confirm: Confirm = None,
    trust_plant: Annotated[
        bool, typer.Option("--trust-plant", help="Run the program that the record names, though you did not give it here.")
    ] = False,
    no_wait: NoWait = False,
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Go on with a run; given its TOML file, with the plant that is described there now.

    An experiment that was handed out and never told is shown first.
    It was executed: `safebo tell` its measurement. It certainly was not: --retry. Nobody knows: --abandon.
    """
    from safebo.cli.terminal import at_terminal
    from safebo.exceptions import InvalidValueError, StopReason
    from safebo.runs.driving import driving
    from safebo.runs.operate import interruptible
    from safebo.runs.prepare import prepare

    if retry and abandon is not None:
        raise InvalidValueError("Choose one of --retry and --abandon.")
    with interruptible(partial(typer.echo, err=True)), opened(run, db) as (store, campaign), driving(campaign):
        seen, halted = campaign.ledger.seq, campaign.ledger.halted is not None
        _follow_file(campaign, run, who)
        spec = campaign.ledger.config.plant
        _agree(store, campaign, spec, trust_plant or run.endswith(".toml"), asks=at_terminal() and not as_json)
        prepare(campaign.ledger.state.settings)
        plant = _plant(spec)
        if not _settle(campaign, retry, abandon, who, asks=at_terminal() and not as_json):
            _choices(campaign, place(run, db), as_json)
            raise typer.Exit(Code.PERSON)
        if campaign.ledger.halted is StopReason.VIOLATION and not accept_violation:
            text = f"Run {campaign.name!r} was stopped: {campaign.ledger.reason}. {StopReason.VIOLATION.advice}"
            _finish(campaign, Code.VIOLATION, "violation", f"{text} `--accept-violation` goes on.", 0, as_json)
        changes = {key: value for key, value in (("experiments", experiments), ("confirm", confirm)) if value is not None}
        if changes:
            campaign.configure(who=who, **changes)
        if halted:  # as it was when this command began: what stopped it since was not seen
            campaign.resume(who=who, accept_violation=accept_violation, seen=seen)
        _go(campaign, plant, who, as_json=as_json, waits=not no_wait, db=db)


def _follow_file(campaign: Campaign, run: str, who: str) -> None:
    """Take over the plant of a TOML file. Parameters, limits and the algorithm must still be those of the run."""
    from safebo.exceptions import InvalidValueError
    from safebo.runs import config
    from safebo.runs.plant_spec import RECORD

    if not run.endswith(".toml"):
        return
    read, known = config.read(Path(run)), campaign.ledger
    if read.optimizer.state.settings != known.state.settings:
        raise InvalidValueError(
            f"{run} describes other parameters, limits or settings than run {known.name!r} was made with, and those cannot be "
            "changed. Start a new run with --name, and `safebo export` and --import its measurements; or resume it by its name."
        )
    kept = {key: value for key, value in known.config.plant.items() if key in RECORD}
    plant = {key: value for key, value in read.plant.items() if key not in RECORD}
    if {**plant, **kept} != known.config.plant:
        campaign.configure(who=who, plant={**plant, **kept})


def _agree(store: Store, campaign: Campaign, spec: dict[str, Any], given: bool, *, asks: bool) -> None:
    """Run no program that only the record names: whoever may write to the database could have put it there."""
    from safebo.cli.terminal import Terminal
    from safebo.exceptions import UntrustedPlantError
    from safebo.runs.trust import described, trust, trusted

    if given or trusted(store, spec):
        trust(store, spec)
        return
    shown = "\n".join(f"  {line}" for line in described(spec))
    text = f"The plant of run {campaign.name!r} is a program that you have not run on this computer yet"
    if asks:
        terminal = Terminal(campaign, asks=True, waits=False, bar=False)
        terminal.err.print(
            f"\n{text}. By the record it is from {json.dumps(_author(campaign))}:\n{shown}", style="bold", markup=False
        )
        if terminal.ask("Run it? [y/N]: ") in ("y", "yes"):
            trust(store, spec)
            return
        raise UntrustedPlantError("Nothing was run.")
    raise UntrustedPlantError(
        f"{text}, and nobody is here to ask:\n{shown}\nSee that it is yours, then `safebo resume {campaign.name} --trust-plant`."
    )


def _author(campaign: Campaign) -> str:
    """Who gave the run its plant, by the record; anybody can sign with any name."""
    from safebo.runs.trust import described

    who, known = "", None
    for event in campaign.events():
        plant = event.body.get("changes", event.body.get("config", {})).get("plant")
        if plant is not None and (found := described(plant)) != known:
            who, known = event.who, found
    return who


def _plant(spec: dict[str, Any]) -> Any:
    """The plant of a run, or None where a person or a client runs the experiments."""
    from safebo.runs.plant_spec import make_plant

    return None if spec.get("type", "manual") in ("http", "manual") else make_plant(spec)


def _go(campaign: Campaign, plant: Any, who: str, *, as_json: bool, waits: bool, db: str | None) -> None:
    """Run experiments until something ends it, and leave with its exit code."""
    from safebo.cli.terminal import Person, Terminal, at_terminal
    from safebo.runs.operate import End, interruptible, operate
    from safebo.runs.plants import stop_outcome
    from safebo.runs.starts import next_start, telling
    from safebo.runs.words import values_text

    spec = campaign.ledger.config.plant
    kind = spec.get("type", "manual")
    if kind == "http":
        text = f"Run {campaign.name!r} is ready: clients poll it at `safebo serve{'' if db is None else f' --db {db}'}`."
        start = next_start(campaign.ledger)
        if start is not None:
            shown = values_text(start.params, campaign.ledger.config.units, 12)
            text += (
                f" Measure the start {shown} first: a client tells it with its parameters (POST /tell), a person with "
                f"`{telling(campaign.ledger, place(campaign.name, db))}`."
            )
        _finish(campaign, Code.OK, "ready", text, 0, as_json)
    asks = at_terminal() and not as_json
    by_hand = kind == "manual" and asks
    terminal = Terminal(campaign, who, asks=asks, waits=waits and kind != "manual", bar=not as_json and not by_hand)
    driven = Person(terminal) if by_hand else plant
    options = {key: spec[key] for key in ("retries", "retry_wait") if key in spec}
    try:
        with interruptible(terminal.say), terminal:
            result = operate(campaign, driven, terminal, who=who, **options)
    except KeyboardInterrupt as interrupt:
        said = f"Interrupted. {stop_outcome(interrupt) if plant is not None else ''}".strip()
        if not as_json:  # before the database is asked
            console(stderr=True).print(said, style="bold", markup=False)
        left = campaign.ledger.pending
        out = (
            ""
            if left is None or not left.out
            else f"Trial {left.trial.id} was handed out: `safebo resume` asks what became of it."
        )
        if not as_json and not out:
            raise typer.Exit(Code.INTERRUPTED) from None
        _finish(campaign, Code.INTERRUPTED, "interrupted", f"{said} {out}".strip() if as_json else out, 0, as_json)
    finally:
        if driven is not None:
            with contextlib.suppress(Exception):
                driven.close()
    if result.end is End.PENDING:
        _choices(campaign, place(campaign.name, db), as_json, result)
        raise typer.Exit(Code.PERSON)
    text = f"{result.text} `safebo resume {place(campaign.name, db)}` goes on." if result.end is End.PAUSED else result.text
    _finish(campaign, _CODES[result.end.value], result.end.value, text, result.experiments, as_json)


_CODES = {
    "done": Code.OK,
    "converged": Code.OK,
    "nothing_left": Code.NOTHING_LEFT,
    "violation": Code.VIOLATION,
    "pending": Code.PERSON,
    "unapproved": Code.PERSON,
    "aborted": Code.ABORTED,
    "unreachable": Code.ABORTED,
    "paused": Code.HALTED,
    "stopped": Code.HALTED,
}


def _finish(campaign: Campaign, code: Code, end: str, text: str, experiments: int, as_json: bool) -> None:
    """Say how it ended and leave."""
    from safebo.cli.results import summary
    from safebo.runs.words import moments

    if as_json:
        emit({"end": end, "text": text, "experiments": experiments, "exit_code": int(code), "run": summary(campaign)})
    else:
        console(stderr=code is not Code.OK).print(
            moments(text, local=True), style="" if code is Code.OK else "bold", markup=False
        )
    raise typer.Exit(code)


# -- a trial that was handed out ---------------------------------------------------------------------------------------------


def _settle(campaign: Campaign, retry: bool, abandon: str | None, who: str, *, asks: bool) -> bool:
    """Whether nothing is handed out any more: a decision was given, or is given now."""
    from safebo.exceptions import InvalidValueError
    from safebo.runs.starts import next_start, retry_start

    ledger = campaign.ledger
    start = next_start(ledger)
    out = ledger.pending if ledger.pending is not None and ledger.pending.out else None
    if out is None and (start is None or not start.out):
        if retry or abandon is not None:
            raise InvalidValueError(
                f"No experiment of run {campaign.name!r} is handed out: there is nothing to retry or abandon."
            )
        return True
    if not retry and abandon is None and asks:
        return _prompt(campaign, who)
    if retry:
        campaign.retry(out.trial.id, who=who) if out is not None else retry_start(campaign, who)
        return True
    if abandon is None:
        return False
    if out is not None:
        campaign.abandon(out.trial.id, abandon, who=who)
    elif start is not None:
        campaign.abort(start.params, f"abandoned: {abandon}", who=who)
    return True


def _prompt(campaign: Campaign, who: str) -> bool:
    """Ask the person what became of it."""
    from safebo.cli.terminal import Person, Terminal, quantities
    from safebo.runs.starts import next_start
    from safebo.runs.words import moment

    terminal = Terminal(campaign, asks=True, waits=False, bar=False)
    ledger = campaign.ledger
    params, at = handed_out(ledger)
    terminal.err.print(
        f"\nHanded to the plant {moment(at, local=True)}, and nothing was told about it:", style="bold", markup=False
    )
    terminal.err.print(f"  {quantities(params, ledger.config.units)}", markup=False)
    answer = terminal.ask("Was it executed? [t]ell its measurement, [r]etry (it certainly was not), [a]bandon, [q]uit: ")
    if answer in ("t", "tell"):
        person = Person(terminal)
        result = person.run(params)
        start = next_start(ledger)
        what: Any = ledger.pending.trial.id if ledger.pending is not None else start.params if start is not None else params
        campaign.tell(what, result.objective, result.constraints, who=who)
        return True
    if answer in ("r", "retry"):
        return _settle(campaign, True, None, who, asks=False)
    if answer in ("a", "abandon"):
        return _settle(campaign, False, terminal.ask("Why? ") or "", who, asks=False)
    return False


def handed_out(ledger: Any) -> tuple[dict[str, float], str]:
    """Parameters of what is handed out, and since when."""
    from safebo.runs.starts import next_start

    if ledger.pending is not None and ledger.pending.out:
        return ledger.pending.trial.params, ledger.pending.started_at
    start = next_start(ledger)
    assert start is not None
    return start.params, start.sent_at


def _choices(campaign: Campaign, run: str, as_json: bool, result: Result | None = None) -> None:
    """Show what is handed out and what can be done about it."""
    from safebo.cli.results import summary
    from safebo.cli.terminal import quantities
    from safebo.runs.words import moment

    ledger = campaign.ledger
    params, at = handed_out(ledger)
    trial = ledger.pending.trial.id if ledger.pending is not None else None
    names = [o.name for o in ledger.state.outputs][1:]
    limits = "".join(f" --limit {name}=..." for name in names)
    commands = {
        "tell": f"safebo tell {run}{f' --trial {trial}' if trial else ''} --objective ...{limits}",
        "retry": f"safebo resume {run} --retry",
        "abandon": f"safebo resume {run} --abandon REASON",
    }
    if as_json:
        document = {"end": "pending", "exit_code": int(Code.PERSON), "trial": trial, "params": params, "handed_out": at}
        emit({**document, "choices": commands, "experiments": result.experiments if result else 0, "run": summary(campaign)})
        return
    err = console(stderr=True)
    err.print(f"Handed out {moment(at, local=True)}: {quantities(params, ledger.config.units)}", style="bold", markup=False)
    err.print(f"  it was executed:           {commands['tell']}", markup=False)
    err.print(f"  it certainly was not:      {commands['retry']}", markup=False)
    err.print(f"  it failed, or nobody knows: {commands['abandon']}", markup=False)
