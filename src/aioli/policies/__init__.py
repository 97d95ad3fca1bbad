"""Policies: what drives one training run, as pure rules behind one stateful object.

    Static    one mixture for the whole run
    Online    rounds of: probe, estimate A^t, solve for p^t, train on it  (Aioli, Skill-It, DoReMi, DoGE, ADO)
    Bandit    one group per batch by EXP3 (ODM; outside LMO)
    Then      one set of rules for the first steps, another for the rest  (Aioli + any method)

Rules are frozen data with three pure functions: the first state, the segment that a state asks for, and the state
after an observation. `RulePolicy` adds what the protocol promises: `ask` is idempotent, a refused `tell` changes
nothing, and the state is plain JSON that can be dumped and reloaded between any two calls.
"""

from aioli.policies.bandit import Bandit
from aioli.policies.online import Normalise, Online, Solver, normalise
from aioli.policies.rehearsed import fork_steps, looks, rehearsed
from aioli.policies.rules import RulePolicy, Rules, build, check_observation
from aioli.policies.static import Static
from aioli.policies.then import Then

__all__ = [
    "Bandit",
    "Normalise",
    "Online",
    "RulePolicy",
    "Rules",
    "Solver",
    "Static",
    "Then",
    "build",
    "check_observation",
    "fork_steps",
    "looks",
    "normalise",
    "rehearsed",
]
