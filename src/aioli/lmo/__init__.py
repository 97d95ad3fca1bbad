"""The three components of Linear Mixing Optimization: laws × parameters (estimators) × solvers."""

from aioli.lmo.direct import Direct
from aioli.lmo.dynamic import LinearDynamic, LogLinearDynamic
from aioli.lmo.estimators import ExcessLoss, GradientInner, SkillGraph
from aioli.lmo.forks import ForkedSweep
from aioli.lmo.laws import Law, LinearStatic, LogLinearStatic
from aioli.lmo.pooled import PooledSweep
from aioli.lmo.similarity import column_sums, scale, similarity, spearman
from aioli.lmo.slopes import ScalingSlope, TimeAverage
from aioli.lmo.solvers import EGD, BestOf, BestSimulated, Optimum
from aioli.lmo.sweep import InterleavedSweep
from aioli.lmo.task import Estimate, Estimator, Round, Task
from aioli.lmo.transfer import TransferPowerLaw
from aioli.lmo.trees import Trees

__all__ = [
    "EGD",
    "BestOf",
    "BestSimulated",
    "Direct",
    "Estimate",
    "Estimator",
    "ExcessLoss",
    "ForkedSweep",
    "GradientInner",
    "InterleavedSweep",
    "Law",
    "LinearDynamic",
    "LinearStatic",
    "LogLinearDynamic",
    "LogLinearStatic",
    "Optimum",
    "PooledSweep",
    "Round",
    "ScalingSlope",
    "SkillGraph",
    "Task",
    "TimeAverage",
    "TransferPowerLaw",
    "Trees",
    "column_sums",
    "scale",
    "similarity",
    "spearman",
]
