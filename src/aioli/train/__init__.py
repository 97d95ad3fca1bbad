"""Training: `Engine`, a trainer of the protocol, and `Run`, a whole run in a directory. Needs `aioli-mix[train]`.

Names are loaded when they are used: a recipe can be read and refused before torch is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
