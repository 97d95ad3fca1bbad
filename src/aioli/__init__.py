"""aioli chooses how much of each data group a language model should see, and feeds it that mixture.

One framework, Linear Mixing Optimization (LMO), expresses every method as three choices:

    law (how loss answers to proportions)  ×  parameters (where A comes from)  ×  solver (how p follows from A)

    policy = aioli.create("aioli").policy(groups=["code", "books", "web"], steps=10_000)
    cursor = aioli.Cursor(policy, {"val_loss": evaluate})      # inside your training loop
    aioli.drive(policy, trainer)                               # or with a trainer of the protocol
"""

from aioli import lmo, simplex
from aioli.cursor import Cursor
from aioli.lmo.task import Task
from aioli.methods import conduct, create, names
from aioli.policies import RulePolicy, build
from aioli.protocol import Observation, Policy, Segment, Trainer, drive
from aioli.runs.spec import Problem, Result, Run

__version__ = "0.1.0"

__all__ = [
    "Cursor",
    "Observation",
    "Policy",
    "Problem",
    "Result",
    "RulePolicy",
    "Run",
    "Segment",
    "Task",
    "Trainer",
    "__version__",
    "build",
    "conduct",
    "create",
    "drive",
    "lmo",
    "names",
    "simplex",
]
