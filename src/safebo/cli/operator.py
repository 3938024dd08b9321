"""Commands of the operator: tell, approve, reject, pause, stop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from safebo.cli.base import RUN, Code, Database, Json, Run, Who, app, console, emit, opened

if TYPE_CHECKING:
    from safebo.runs import Campaign

Reason = Annotated[str, typer.Option(help="For the record.")]
TrialId = Annotated[Optional[str], typer.Option("--trial", help="Id of the trial; default: the pending one.", show_default=False)]


@app.command(rich_help_panel=RUN)
def tell(
    run: Run,
    objective: Annotated[float, typer.Option(help="The measured objective.")],
    limit: Annotated[
        Optional[list[str]], typer.Option(metavar="NAME=VALUE", help="Measured value of a limit.", show_default=False)
    ] = None,
    trial: TrialId = None,
    param: Annotated[
        Optional[list[str]],
        typer.Option(metavar="NAME=VALUE", help="Parameters of a measurement that was not asked for.", show_default=False),
    ] = None,
    context: Annotated[
        Optional[list[str]], typer.Option(metavar="NAME=TEXT", help="What else was noted.", show_default=False)
    ] = None,
    db: Database = None,
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Record a measurement: of the pending experiment, or of parameters that were not asked for."""
    from safebo.cli.results import standing, summary
    from safebo.cli.terminal import at_terminal
    from safebo.exceptions import InvalidValueError
    from safebo.outputs import OBJECTIVE, number
    from safebo.runs.operate import interruptible
    from safebo.runs.starts import next_start

    if trial is not None and param:
        raise InvalidValueError("Name a trial or parameters, not both.")
    values = _numbers(limit or [], "--limit")
    noted = dict(_pair(text, "--context") for text in context or []) or None
    with interruptible(partial(typer.echo, err=True)), opened(run, db) as (_, campaign):
        ledger = campaign.ledger
        start = next_start(ledger)
        _all_of(values, [o.name for o in ledger.state.outputs[1:]], "limits", "--limit")
        what: Any = _numbers(param, "--param") if param else trial
        if param:
            _all_of(what, ledger.state.settings.domain.names, "parameters", "--param")
            ledger.state.settings.domain.point(what)
        for name, value in {OBJECTIVE: objective, **values}.items():
            number(value, f"The measurement of {name!r}")
        if what is None and ledger.pending is not None:
            what = ledger.pending.trial.id
        elif what is None and start is not None:
            what = start.params
        elif what is None:
            raise InvalidValueError(
                f"No experiment of run {campaign.name!r} is pending: name the parameters with --param NAME=VALUE."
            )
        _second_look(campaign, what, {OBJECTIVE: objective, **values}, asks=at_terminal() and not as_json)
        receipt = campaign.tell(what, objective, values or None, context=noted, who=who)
        code = Code.VIOLATION if receipt.violated else Code.OK
        if as_json:
            emit({"violated": receipt.violated, "exit_code": int(code), "run": summary(campaign)})
        elif receipt.violated:
            shown = ", ".join(f"{name} = {value:g}" for name, value in receipt.violated.items())
            console(stderr=True).print(
                f"recorded as measurement {campaign.ledger.told}; OUTSIDE THE LIMIT: {shown}; the run is {standing(campaign)}",
                style="bold red",
                markup=False,
            )
        else:
            console().print(f"recorded as measurement {campaign.ledger.told}; the run is {standing(campaign)}", markup=False)
    raise typer.Exit(code)


def _second_look(campaign: Campaign, what: object, values: dict[str, float], *, asks: bool) -> None:
    """A value that is hard to believe is entered twice at a terminal; elsewhere it is pointed out."""
    from safebo.cli.terminal import read_line
    from safebo.exceptions import InvalidValueError
    from safebo.runs.doubts import doubts

    ledger = campaign.ledger
    trial = ledger.trial if ledger.trial is not None and ledger.trial.id == what else None
    for name, text in doubts(values, trial, ledger.state.outputs, ledger.config.units).items():
        if not asks:
            typer.echo(f"warning: {text}", err=True)
            continue
        typer.echo(f"{text}: is that right? Enter it again: ", err=True, nl=False)
        again = (read_line(lambda: False) or "").strip()
        try:
            same = float(again) == values[name]
        except ValueError:
            same = False
        if not same:
            raise InvalidValueError(f"{name} was {values[name]:g} first and {again!r} then. Nothing was stored: tell it again.")


def _all_of(given: dict[str, float], names: Sequence[str], what: str, option: str) -> None:
    """Refuse values that are not for just these names, before anything is asked."""
    from safebo.exceptions import InvalidValueError
    from safebo.naming import unmatched

    if wrong := unmatched(given, names):
        wanted = " ".join(f"{option} {name}=VALUE" for name in names)
        raise InvalidValueError(
            f"The {what} are {list(names)}: {wrong} " + (f"Give {wanted}." if names else f"Leave {option} out.")
        )


def _pair(text: str, option: str) -> tuple[str, str]:
    from safebo.exceptions import InvalidValueError

    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise InvalidValueError(f"{option} takes NAME=VALUE, got {text!r}.")
    return name.strip(), value.strip()


def _numbers(texts: list[str], option: str) -> dict[str, float]:
    from safebo.exceptions import InvalidValueError

    found: dict[str, float] = {}
    for text in texts:
        name, value = _pair(text, option)
        try:
            found[name] = float(value)
        except ValueError:
            raise InvalidValueError(f"{option} {name} must be a number, got {value!r}.") from None
    return found


@app.command(rich_help_panel=RUN)
def approve(run: Run, trial: TrialId = None, db: Database = None, who: Who = "", as_json: Json = False) -> None:
    """Approve the pending experiment of a run that wants it (confirm = true)."""
    from safebo.exceptions import ConflictError
    from safebo.runs.starts import approve_start, next_start
    from safebo.runs.words import values_text

    with opened(run, db) as (_, campaign):
        ledger = campaign.ledger
        if trial is None and ledger.pending is None:
            start = next_start(ledger)
            if start is None:
                raise ConflictError(f"Nothing of run {campaign.name!r} waits for an approval.")
            approve_start(campaign, who)
            _done(campaign, f"approved the start {values_text(start.params, ledger.config.units)}", as_json)
            return
        known = trial or (ledger.pending.trial.id if ledger.pending is not None else "")
        campaign.approve(known, who=who)
        pending = ledger.pending
        params = "" if pending is None else f": {values_text(pending.trial.params, ledger.config.units)}"
        _done(campaign, f"approved {known}{params}", as_json)


@app.command(rich_help_panel=RUN)
def reject(
    run: Run, trial: TrialId = None, reason: Reason = "", db: Database = None, who: Who = "", as_json: Json = False
) -> None:
    """Reject the pending experiment; others keep away from it."""
    from safebo.exceptions import ConflictError

    with opened(run, db) as (_, campaign):
        ledger = campaign.ledger
        if trial is None and ledger.pending is None:
            raise ConflictError(f"Nothing of run {campaign.name!r} is pending.")
        known = trial or (ledger.pending.trial.id if ledger.pending is not None else "")
        campaign.reject(known, reason, who=who)
        _done(campaign, f"rejected {known}", as_json)


@app.command(rich_help_panel=RUN)
def void(
    run: Run,
    number: Annotated[int, typer.Argument(metavar="N", help="Number of the measurement, as status, page and export show it.")],
    reason: Reason = "",
    db: Database = None,
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Take a measurement back, a typing error for example: the run goes on as if it had not been told.

    It stays in the record. Tell the right value afterwards with `safebo tell --param`.
    """
    from safebo.cli.results import standing
    from safebo.runs.words import values_text

    with opened(run, db) as (_, campaign):
        campaign.void(number, reason, who=who)
        ledger = campaign.ledger
        gone = ledger.voided[-1].sample
        units = ledger.config.units
        values = values_text(dict(zip([o.name for o in ledger.state.outputs], gone[2], strict=True)), units)
        params = values_text(dict(zip(ledger.state.settings.domain.names, gone[0], strict=True)), units)
        doubtful = sorted(ledger.doubtful & ledger.closed)
        rested = f"; these trials were certified with it: {', '.join(doubtful)}" if doubtful else ""
        text = f"took back measurement {number}: {values} at {params}{rested}; the run is {standing(campaign)}"
        _done(campaign, text, as_json)


@app.command(rich_help_panel=RUN)
def pause(run: Run, reason: Reason = "", db: Database = None, who: Who = "", as_json: Json = False) -> None:
    """Let nothing follow the present experiment, until `safebo resume`."""
    with opened(run, db) as (_, campaign):
        campaign.pause(reason, who=who)
        _done(campaign, "paused", as_json)


@app.command(rich_help_panel=RUN)
def stop(run: Run, reason: Reason = "", db: Database = None, who: Who = "", as_json: Json = False) -> None:
    """Stop a run, and the plant within a second if an experiment is running."""
    with opened(run, db) as (_, campaign):
        campaign.stop(reason, who=who)
        _done(campaign, "stopped", as_json)


def _done(campaign: Campaign, text: str, as_json: bool) -> None:
    from safebo.cli.results import summary

    if as_json:
        emit({"text": text, "run": summary(campaign)})
    else:
        console().print(text, markup=False)
