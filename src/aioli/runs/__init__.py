"""Runs: what a method plans, as frozen data with a content hash; the store that keeps them; executors that train them.

`Problem`, `Run` and `Result` are light; the other names are loaded when they are used and need `aioli-mix[train]`.
"""

from typing import TYPE_CHECKING

from aioli.lazy import names_from
from aioli.runs.spec import BUDGETS, Problem, Result, Run

if TYPE_CHECKING:
    from aioli.runs.comparison import Comparison, compare
    from aioli.runs.conducting import Asked, Carried, Conductor, Executor
    from aioli.runs.job import Job, Setup
    from aioli.runs.local import LocalExecutor
    from aioli.runs.mixing import Mixture, mixture
    from aioli.runs.on_ray import RayExecutor
    from aioli.runs.rehearsal import rehearse
    from aioli.runs.store import RunStore

__all__ = [
    "BUDGETS",
    "Asked",
    "Carried",
    "Comparison",
    "Conductor",
    "Executor",
    "Job",
    "LocalExecutor",
    "Mixture",
    "Problem",
    "RayExecutor",
    "Result",
    "Run",
    "RunStore",
    "Setup",
    "compare",
    "mixture",
    "rehearse",
]

_PLACES = {
    "Asked": "conducting",
    "Carried": "conducting",
    "Comparison": "comparison",
    "Conductor": "conducting",
    "Executor": "conducting",
    "Job": "job",
    "LocalExecutor": "local",
    "Mixture": "mixing",
    "RayExecutor": "on_ray",
    "RunStore": "store",
    "Setup": "job",
    "compare": "comparison",
    "mixture": "mixing",
    "rehearse": "rehearsal",
}

__getattr__ = names_from(__name__, _PLACES)
