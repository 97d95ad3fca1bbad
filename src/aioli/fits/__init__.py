"""Mixing laws on anybody's table of runs: read it, fit a law, see whether to trust it, solve for the best mixture."""

from aioli.fits.fit import Fit, fit_runs
from aioli.fits.named import LAWS, create_law
from aioli.fits.solution import Solution, solve
from aioli.fits.table import Runs, read_mixtures, read_runs
from aioli.fits.wish import Wish, caps_from_tokens

__all__ = [
    "LAWS",
    "Fit",
    "Runs",
    "Solution",
    "Wish",
    "caps_from_tokens",
    "create_law",
    "fit_runs",
    "read_mixtures",
    "read_runs",
    "solve",
]
