"""The fidelity analysis of Section 4 and Appendix C: do the laws hold, are the parameters right, is greedy enough?"""

from __future__ import annotations

from collections.abc import Callable

from aioli.analysis.a_star import a_star
from aioli.analysis.greedy import greedy
from aioli.analysis.interactions import interactions
from aioli.analysis.laws import laws
from aioli.analysis.parameters import parameters
from aioli.analysis.study import Analysis, AsMethod, Figure, Lab, Staged, Table

STUDIES: dict[str, Callable[[Lab], Staged]] = {
    "laws": laws,
    "interactions": interactions,
    "a-star": a_star,
    "parameters": parameters,
    "greedy": greedy,
}
"""What `aioli analyze` can do."""

__all__ = ["STUDIES", "Analysis", "AsMethod", "Figure", "Lab", "Staged", "Table"]
