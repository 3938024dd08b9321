"""Runs on something that can break: durable runs, plants, and the loop that drives them."""

from safebo.runs.campaign import Campaign, Follower, Receipt
from safebo.runs.ledger import Ledger, Pending, RunConfig
from safebo.runs.loop import Drive, drive
from safebo.runs.plants import CallablePlant, Measurement, Plant, SocketPlant, SubprocessPlant, Watchdog, measurement
from safebo.runs.storage import Event, Store

__all__ = [
    "CallablePlant",
    "Campaign",
    "Drive",
    "Event",
    "Follower",
    "Ledger",
    "Measurement",
    "Pending",
    "Plant",
    "Receipt",
    "RunConfig",
    "SocketPlant",
    "Store",
    "SubprocessPlant",
    "Watchdog",
    "drive",
    "measurement",
]
