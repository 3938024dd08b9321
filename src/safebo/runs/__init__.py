"""Runs on something that can break: plants, and the loop that drives them."""

from safebo.runs.loop import Drive, drive
from safebo.runs.plants import CallablePlant, Measurement, Plant, SocketPlant, SubprocessPlant, Watchdog, measurement

__all__ = ["CallablePlant", "Drive", "Measurement", "Plant", "SocketPlant", "SubprocessPlant", "Watchdog", "drive", "measurement"]
