"""Commands that look at runs, and move measurements: status, list, best, export, import, plot, report, serve."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from safebo.cli.base import (
    LOOK,
    RUN,
    SETUP,
    Database,
    Force,
    Json,
    Run,
    Who,
    app,
    console,
    emit,
    locate,
    opened,
    place,
    write,
    wrote,
)

if TYPE_CHECKING:
    from safebo.optimizer import SafeOptimizer
    from safebo.runs import Campaign, Ledger


WIDE = 160
"""Columns of a table that no terminal shows: a file has room."""


def summary(campaign: Campaign) -> dict[str, Any]:
    """A run in plain values; its driver is empty if nobody drives it."""
    from safebo.report.scene import was_rejected
    from safebo.runs.starts import next_start

    ledger = campaign.ledger
    state, pending = ledger.state, ledger.pending
    refused = sum(was_rejected(abort.reason) for abort in state.aborts)
    inside = state.inside()
    safe = [i for i in range(state.step) if inside[i]]
    top = max(safe, key=lambda i: state.samples[i].values[0], default=None)
    return {
        "name": ledger.name,
        "title": ledger.config.title,
        "status": ledger.status,
        "driver": driven_by(campaign),
        "asked_at": ledger.asked_at or None,
        "reason": ledger.reason,
        "created": ledger.created.at,
        "created_by": ledger.created.who,
        "experiments": ledger.experiments,
        "planned": ledger.config.experiments,
        "measurements": state.step,
        "violations": len(ledger.violations),
        "voided": [v.number for v in ledger.voided],
        "doubtful": sorted(ledger.doubtful),
        "aborts": len(state.aborts) - refused,
        "rejected": refused,
        "last_measured": None if not ledger.numbers else _measured(ledger, len(ledger.numbers) - 1),
        "best_measured": None if top is None else _measured(ledger, top),
        "pending": None
        if pending is None
        else {
            "trial": pending.trial.id,
            "params": pending.trial.params,
            "bounds": pending.trial.bounds,
            "confidence": pending.trial.confidence,
            "asked_at": pending.asked_at,
            "approved_by": pending.approved[0] if pending.approved else None,
            "approved_at": pending.approved[1] if pending.approved else None,
            "handed_out": pending.started_at if pending.out else None,
        },
        "start": None
        if pending is not None or (start := next_start(ledger)) is None
        else {
            "params": start.params,
            "number": start.number,
            "approved_by": start.approved[0] if start.approved else None,
            "approved_at": start.approved[1] if start.approved else None,
            "handed_out": start.sent_at if start.out else None,
        },
    }


def driven_by(campaign: Campaign) -> str:
    """Who drives a run when this command has ended; empty if nobody does."""
    from safebo.runs.driving import driver

    mine = campaign.drives is not None and not campaign.driving_lost
    return "" if mine else driver(campaign.store, campaign.name)


def standing(campaign: Campaign) -> str:
    """A run in one word, the same as `status` says: a run that nobody drives is open."""
    from safebo.runs.words import Standing

    return Standing.of(campaign.ledger).words(driven_by(campaign))[0]


def _measured(ledger: Ledger, index: int) -> dict[str, Any]:
    """A measurement with its number."""
    state = ledger.state
    sample, domain = state.samples[index], state.settings.domain
    values = dict(zip([o.name for o in state.outputs], sample.values, strict=True))
    return {"number": ledger.numbers[index], "params": domain.as_dict(domain.point(sample.point)), "values": values}


@app.command(rich_help_panel=LOOK)
def status(run: Run, db: Database = None, as_json: Json = False) -> None:
    """Where a run stands: who drives it, experiments, violations, the pending experiment, the best measurement so far."""
    from safebo.cli.terminal import quantities
    from safebo.runs.words import Standing, counted, moments

    with opened(run, db) as (_, campaign):
        content, ledger = summary(campaign), campaign.ledger
    if as_json:
        emit(content)
        return
    out, units = console(), ledger.config.units
    planned = "" if content["planned"] is None else f" of {content['planned']}"
    word, _, how = Standing.of(ledger).words(content["driver"])
    if word == "open" and ledger.config.plant.get("type") not in (None, "http"):
        how += f"; `safebo resume {place(run, db)}` goes on"
    why = f" ({ledger.reason.rstrip('.')})" if ledger.reason else ""
    how = f", {moments(how, local=True)}" if how else ""
    out.print(f"{ledger.name}: {word}{why}{how}", style="bold", markup=False)
    done = f"{content['experiments']}{planned} experiments" if planned else counted(content["experiments"], "experiment")
    out.print(f"{done}, {counted(content['measurements'], 'measurement')}", markup=False)
    gone = f", {len(ledger.voided)} taken back" if ledger.voided else ""
    text = f"{content['violations']} outside a limit, {content['aborts']} aborted, {content['rejected']} rejected{gone}"
    out.print(text, markup=False)
    for which in ("best", "last"):
        found = content[f"{which}_measured"]
        if found is not None and (which == "best" or found != content["best_measured"]):
            text = f"{quantities(found['values'], units)} at {quantities(found['params'], units)} (number {found['number']})"
            out.print(f"{which} measured: {text}", markup=False)
    pending = content["pending"]
    if pending:
        out.print(f"pending: {pending['trial']}, {quantities(pending['params'], units)}, {_state(pending, ledger)}", markup=False)
        if pending["trial"] in ledger.doubtful:
            out.print("  it was certified with a measurement that was taken back later", style="bold yellow", markup=False)
    start = content["start"]
    if start:
        again = f", measurement {start['number']}" if start["number"] > 1 else ""
        out.print(f"start: {quantities(start['params'], units)}{again}, {_state(start, ledger)}", markup=False)


def _state(content: dict[str, Any], ledger: Ledger) -> str:
    """Where an experiment stands that has no measurement yet."""
    from safebo.runs.words import moment

    approved = (
        f"approved by {content['approved_by']} {moment(content['approved_at'], local=True)}" if content["approved_by"] else ""
    )
    if content["handed_out"]:
        return f"handed out {moment(content['handed_out'], local=True)}" + (f", {approved}" if approved else "")
    waits = f"waits for an approval: `safebo approve {ledger.name}`"
    return approved or (waits if ledger.config.confirm else "not handed out yet")


@app.command("list", rich_help_panel=LOOK)
def list_runs(db: Database = None, as_json: Json = False) -> None:
    """All runs of a database."""
    from rich.markup import escape
    from rich.table import Table

    from safebo.runs import Campaign, Store
    from safebo.runs.config import DATABASE
    from safebo.runs.words import Standing, moment

    with Store.open(db or DATABASE, create=False) as store:
        campaigns = [Campaign.open(store, name) for name in store.names()]
        found = [summary(campaign) for campaign in campaigns]
        ledgers = [campaign.ledger for campaign in campaigns]
    if as_json:
        emit(found)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", "status", "driven by", "experiments", "outside", "aborted", "rejected", "best", "created"):
        table.add_column(column, overflow="fold")
    for ledger, content in zip(ledgers, found, strict=True):
        word, by, _ = Standing.of(ledger).words(content["driver"])
        planned = "" if content["planned"] is None else f" of {content['planned']}"
        best = content["best_measured"]
        table.add_row(
            escape(content["name"]), word, escape(by), f"{content['experiments']}{planned}", str(content["violations"]),
            str(content["aborts"]), str(content["rejected"]), f"{best['values']['objective']:.4g}" if best else "-",
            moment(content["created"], local=True)[:16],
        )  # fmt: skip
    out = console()
    out.width = out.width if out.is_terminal else max(out.width, WIDE)
    out.print(table if found else "no runs: `safebo init` writes a file, and `safebo run` makes a run of it")


@app.command(rich_help_panel=LOOK)
def best(run: Run, db: Database = None, as_json: Json = False) -> None:
    """The parameters to use: the best measured inside all limits, or certified ones that are surely better."""
    from safebo.cli.terminal import quantities

    optimizer, ledger = _look(run, db)
    found = optimizer.best()
    units = ledger.config.units
    if as_json:
        emit({"params": found.params, "lower": found.lower, "mean": found.mean, "upper": found.upper, "units": units})
        return
    out = console()
    out.print(quantities(found.params, units), style="bold", markup=False)
    unit = f" {units['objective']}" if units.get("objective") else ""
    out.print(f"objective: {found.mean:.6g}{unit}, certified between {found.lower:.6g} and {found.upper:.6g}", markup=False)


def _look(run: str, db: str | None) -> tuple[SafeOptimizer, Ledger]:
    """The optimizer of a run, for looking."""
    from safebo.exceptions import NormRefutedWarning
    from safebo.runs import Follower, Store

    where, name = locate(run, db)
    with Store.open(where, create=False) as store:
        follower = Follower(store, name)
        optimizer, ledger = follower.optimizer(), follower.ledger
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NormRefutedWarning)  # it was issued when it happened
        if ledger.state.inside().any():
            optimizer.stop_reason  # noqa: B018 - analyse the state here
    return optimizer, ledger


@app.command(rich_help_panel=LOOK)
def export(
    run: Run,
    out: Annotated[
        Optional[Path], typer.Option("--out", "-o", help="File to write; default: standard output.", show_default=False)
    ] = None,
    form: Annotated[
        Optional[str], typer.Option("--format", help="csv or json; default: that of the file, else csv.", show_default=False)
    ] = None,
    db: Database = None,
    force: Force = False,
) -> None:
    """Write a run as CSV (a row per experiment) or JSON (everything, with the whole record)."""
    import json

    from safebo.exceptions import InvalidValueError
    from safebo.runs import transfer

    kind = form or (out.suffix[1:].lower() if out is not None and out.suffix else "csv")
    if kind not in ("csv", "json"):
        raise InvalidValueError(f"--format must be csv or json, got {kind!r}.")
    with opened(run, db) as (_, campaign):
        ledger, events = campaign.ledger, campaign.events()
    text = transfer.to_csv(ledger, events) if kind == "csv" else json.dumps(transfer.to_document(ledger, events), indent=2) + "\n"
    if out is None:
        typer.echo(text.encode("utf-8", "backslashreplace"), nl=False)  # data, whatever the terminal can show
    else:
        write(out, text, force=force)
        console(stderr=True).print(f"wrote {out}", markup=False)


@app.command("import", rich_help_panel=SETUP)
def import_measurements(
    run: Run,
    file: Annotated[Path, typer.Argument(help="CSV with a column per parameter and output, or JSON; see docs/command-line.md.")],
    db: Database = None,
    again: Annotated[bool, typer.Option("--again", help="Also measurements that the run has already, as repetitions.")] = False,
    who: Who = "",
    as_json: Json = False,
) -> None:
    """Add earlier measurements to a run: all of a file, or, if one of them is wrong, none."""
    from safebo.exceptions import InvalidValueError
    from safebo.runs import transfer
    from safebo.runs.words import counted

    with opened(run, db) as (_, campaign):
        rows = transfer.read_measurements(file, campaign.ledger.state.settings)
        before = len(campaign.ledger.violations)
        copies = transfer.known(rows, campaign.ledger.state)
        if copies and not again:
            raise InvalidValueError(
                f"{copies} of the {len(rows)} measurements of {file} are in run {campaign.name!r} already, to the last digit. "
                "Told twice they would count as repetitions and make it too certain. Nothing was stored; --again if they are."
            )
        if rows:
            campaign.tell_many(rows, who=who)
        ledger, described, word = campaign.ledger, summary(campaign), standing(campaign)
    outside = len(ledger.violations) - before
    if as_json:
        emit({"imported": len(rows), "outside": outside, "run": described})
    else:
        text = f"imported {counted(len(rows), 'measurement')}, {outside} of them outside a limit; the run is {word}"
        console().print(text, markup=False)


@app.command(rich_help_panel=LOOK)
def plot(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="PNG, SVG or PDF file to write.")] = Path("plot.png"),
    what: Annotated[str, typer.Option(help="progress, state (one or two parameters), or norm.")] = "progress",
    vary: Annotated[Optional[list[str]], typer.Option(help="One or two parameters of a state plot.", show_default=False)] = None,
    output: Annotated[Optional[str], typer.Option(help="Which output a state plot shows.", show_default=False)] = None,
    field: Annotated[
        Optional[str],
        typer.Option(help="Of a state over two parameters: mean, lower, upper, width or margin.", show_default=False),
    ] = None,
    db: Database = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Draw a run; needs the extra `plot`."""
    from safebo.exceptions import InvalidValueError
    from safebo.report import plot_norms, plot_progress, plot_slice
    from safebo.runs.transfer import experiments

    if what not in ("progress", "state", "norm"):
        raise InvalidValueError(f"--what must be progress, state or norm, got {what!r}.")
    given = {"--vary": vary, "--output": output, "--field": field}
    unused = [option for option, value in given.items() if value and what != "state"]
    if unused:
        belong = f"{' and '.join(unused)} belong{'s' if len(unused) == 1 else ''}"
        raise InvalidValueError(f"{belong} to --what state, got --what {what}.")
    if out.exists() and not force:
        raise InvalidValueError(f"{out} exists: choose another name, or replace it with --force.")
    optimizer, ledger = _look(run, db)
    title = ledger.config.title or ledger.name
    trials = []
    if what == "norm":
        with opened(run, db) as (_, campaign):
            trials = [e.trial for e in experiments(ledger, campaign.events()) if e.trial is not None]
    if what == "progress":
        figure = plot_progress(optimizer, numbers=ledger.numbers, title=title, units=ledger.config.units)
    elif what == "norm":
        figure = plot_norms(trials, title=title)
    else:
        axes = vary or list(optimizer.domain.names[:2])
        if field is not None and len(axes) == 1:
            raise InvalidValueError(
                f"--field belongs to a state over two parameters, got {field!r} with one: over {axes[0]!r} mean, interval and "
                "limits are drawn together. Leave it out."
            )
        shown: dict[str, Any] = {"output": output, "title": title, "units": ledger.config.units}
        shown |= {"next_trial": ledger.trial or False, **({} if field is None else {"field": field})}
        figure = plot_slice(optimizer, axes, **shown)
    try:
        figure.savefig(out, dpi=150)
    except ValueError as error:  # of matplotlib: a format that it does not know
        raise InvalidValueError(f"{out} cannot be drawn: {error}. Use .png, .pdf or .svg.") from None
    wrote(out, as_json)


@app.command(rich_help_panel=LOOK)
def report(
    run: Run,
    out: Annotated[
        Optional[Path], typer.Option("--out", "-o", help="HTML file to write; default: RUN.html.", show_default=False)
    ] = None,
    db: Database = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a self-contained HTML report: results, figures, the safety record, settings and what is guaranteed."""
    from rich.progress import Progress

    from safebo.report.html import html_report
    from safebo.runs import Follower, Store

    where, name = locate(run, db)
    path = out or Path(re.sub(r"[^\w. -]", "_", name).lstrip(". -") + ".html")  # a name made over HTTP is no path
    with Store.open(where, create=False) as store:
        follower = Follower(store, name)
        ledger, events, optimizer = follower.ledger, store.events(name), follower.optimizer()
    err = console(stderr=True)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("figures", total=None)
        text = html_report(optimizer, ledger, events, on_step=lambda what: progress.update(task, description=what))
    write(path, text, force=force)
    wrote(path, as_json)


@app.command(rich_help_panel=RUN)
def serve(
    database: Annotated[
        Optional[str], typer.Argument(help="A file such as safebo.db, or a URL; the same as --db.", show_default=False)
    ] = None,
    db: Database = None,
    host: Annotated[str, typer.Option(help="Address to listen at; others than this computer's need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 8000,
    token_file: Annotated[
        Optional[Path], typer.Option(help="Lines `name role token`; role viewer, rig or operator.", show_default=False)
    ] = None,
    rate: Annotated[float, typer.Option(min=0.0, help="Requests per second from one client; 0: no limit.")] = 100.0,
    certificate: Annotated[Optional[Path], typer.Option(help="For TLS, in PEM format.", show_default=False)] = None,
    private_key: Annotated[Optional[Path], typer.Option(help="Of the certificate.", show_default=False)] = None,
) -> None:
    """Serve runs over HTTP: ask and tell for plants that poll, and a live page for the operator."""
    from safebo import server
    from safebo.runs.config import DATABASE

    server.main(
        database or db or DATABASE,
        host=host,
        port=port,
        token_file=token_file,
        limits=server.Limits(rate=rate),
        certificate=certificate,
        private_key=private_key,
    )
