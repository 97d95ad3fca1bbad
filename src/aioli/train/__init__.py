"""Training: `Engine`, a trainer of the protocol, and `Run`, a whole run in a directory. Needs `aioli-mix[train]`.

Names are loaded when they are used: a recipe can be read and refused before torch is.
"""

from typing import TYPE_CHECKING

from aioli.lazy import names_from

if TYPE_CHECKING:
    from aioli.train.engine import DivergedError, Engine, Settings
    from aioli.train.optimizer import Schedule
    from aioli.train.recipe import TrainRecipe
    from aioli.train.running import Run, StoppedError

__all__ = ["DivergedError", "Engine", "Run", "Schedule", "Settings", "StoppedError", "TrainRecipe"]

_PLACES = {
    "DivergedError": "engine",
    "Engine": "engine",
    "Run": "running",
    "Schedule": "optimizer",
    "Settings": "engine",
    "StoppedError": "running",
    "TrainRecipe": "recipe",
}

__getattr__ = names_from(__name__, _PLACES)
