"""Training: `Engine`, a trainer of the protocol, and `Run`, a whole run in a directory. Needs `aioli-mix[train]`."""

from aioli.train.engine import DivergedError, Engine, Settings
from aioli.train.optimizer import Schedule
from aioli.train.recipe import TrainRecipe
from aioli.train.running import Run, StoppedError

__all__ = ["DivergedError", "Engine", "Run", "Schedule", "Settings", "StoppedError", "TrainRecipe"]
