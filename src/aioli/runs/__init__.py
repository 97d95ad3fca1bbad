"""Runs: what a method plans, as frozen data with a content hash."""

from aioli.runs.spec import BUDGETS, Problem, Result, Run

__all__ = ["BUDGETS", "Problem", "Result", "Run"]
