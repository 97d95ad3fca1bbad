"""A simulator of training with known truth: try methods and their settings before spending GPU hours."""

from aioli.simulate.compare import Comparison, Score, Setting, Simulator, compare
from aioli.simulate.trainer import COSTS, Noise, SimTrainer
from aioli.simulate.worlds import WORLDS, LinearWorld, PowerLawWorld, World, uniform_world
from aioli.stats import interval

__all__ = [
    "COSTS",
    "WORLDS",
    "Comparison",
    "LinearWorld",
    "Noise",
    "PowerLawWorld",
    "Score",
    "Setting",
    "SimTrainer",
    "Simulator",
    "World",
    "compare",
    "interval",
    "uniform_world",
]
