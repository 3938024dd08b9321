"""What the tests of durable runs share."""

from __future__ import annotations

import sqlalchemy as sa

from safebo import Box, Fixed, Matern, SafeOptimizer


def optimizer(**changes):
    """One that decides quickly; its mathematics does not matter here."""
    settings = {
        "norm": Fixed(2.0),
        "kernel": Matern(1.5, 0.2),
        "cubes": None,
        "points_per_axis": 50,
        "min_width": 0.02,
        **changes,
    }
    opt = SafeOptimizer(Box({"a": (0.0, 1.0)}), 0.0, **settings)
    opt.tell({"a": 0.5}, 1.0)
    return opt


def plant(params):
    """The measured value: a function of the parameters alone."""
    return 1.0 - (params["a"] - 0.6) ** 2


def execute(url, *statements):
    """SQL on a database, past the library."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as connection:
            for statement in statements:
                result = connection.execute(sa.text(statement))
                rows = result.all() if result.returns_rows else []
        return rows
    finally:
        engine.dispose()


def dump(url):
    """Everything in a database."""
    tables = ("safebo_meta", "safebo_runs", "safebo_events", "safebo_requests")
    return {table: sorted(map(tuple, execute(url, f"SELECT * FROM {table}"))) for table in tables}


def certificate(trial):
    """A trial to the last bit."""
    return None if trial is None else (trial.id, trial.params, trial.x, trial.bounds, trial.norms, trial.norm, trial.cube)
