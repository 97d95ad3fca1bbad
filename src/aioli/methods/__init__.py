"""Methods: each plans the runs it needs and ends with the run it recommends.

A method is one function, decorated with its row of the paper's Table 1. It either returns the final run at once, or is
a generator that yields stages (lists of runs), receives their results, and returns the final run. Settings are its
keyword arguments. `docs/your-own-method.md` shows how to add one; `registry` finds them and checks
their settings, `carrying` carries them out.
"""

from __future__ import annotations

from aioli.carrying import Outcome, conduct
from aioli.methods import baselines, family
from aioli.registry import Method, Plan, Row, Vector, create, method, names

__all__ = ["Method", "Outcome", "Plan", "Row", "Vector", "baselines", "conduct", "create", "family", "method", "names"]
