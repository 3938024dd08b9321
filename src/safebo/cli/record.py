"""The command that checks a run's record: verify."""

from __future__ import annotations

from safebo.cli.base import LOOK, Database, Json, Run, app, console, emit, locate


@app.command(rich_help_panel=LOOK)
def verify(run: Run, db: Database = None, as_json: Json = False) -> None:
    """Read a run's whole record and check that nothing is missing or changed; also of a copy that cannot be written.

    A record that is damaged ends with code 1 and says where.
    """
    from dataclasses import asdict

    from safebo.runs import Store
    from safebo.runs.verify import verify as verified
    from safebo.runs.words import counted

    where, name = locate(run, db)
    with Store.open(where, create=False, read_only=True) as store:
        found = verified(store, name)
    if as_json:
        emit({"run": name, **asdict(found), "complete": True})
        return
    held = f"{counted(found.events, 'event')}, {counted(found.measurements, 'measurement')}"
    text = f"{name}: {held}, {found.aborts} aborted or rejected, complete"
    console().print(text, markup=False)
