"""Settings of methods: whether a value is of the type that an annotation asks for, and what each setting means."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

MEANINGS: dict[str, str] = {
    "alpha": "concentration of the sweep's Dirichlet draws",
    "after": "share of the run before the first sweep",
    "first": "share of the round spent on sweeps while it is not known whether several targets agree",
    "expected": "how large contrasts are expected to be for a single target; None: caution decides, as for several",
    "even": "towards a single target, mix evenly what noise does not tell apart",
    "trail": "standard errors by which a group must trail the best towards a single target to be swept no more",
    "around": "what sweep mixtures are smoothed towards: uniform (the paper) or the current mixture",
    "candidates": "simulated mixtures to choose from",
    "caps": "largest share of each group: a list, or a dict by name",
    "caution": "how many times its variance by noise a squared contrast must amount to; None: 1 for one target, else 2",
    "doubt": "how many times the standard error over targets their mean contrast must amount to",
    "until": "share of the run in which rounds begin with a sweep; after it the mixture stays",
    "clip": "clip the excess loss per group (this paper) or per token (the original)",
    "delta": "share of each round spent on the sweep; None: the paper's, raised where rounds are short",
    "diagonal": "keep only the effect of each group on itself",
    "discount": "weight of a round relative to the one after it",
    "eps": "one-hot smoothing of the sweep mixtures; 0 trains on one group at a time",
    "eta": "step size: how far one update moves the mixture",
    "fit": "solve with the realised proportions, or with the requested ones",
    "floor": "smallest preference of a group",
    "floors": "smallest share of each group: a list, or a dict by name",
    "graph": "the skill graph, where it is known: for each target, how much every group helps; no extra runs",
    "gamma": "weight of the past in a moving average; None: updates accumulate",
    "huber": "residual beyond which errors count linearly, in units of the loss; None: from the data",
    "k": "sweeps per group and round; None: 4 for up to 3 groups, else 2",
    "normalise": "how A is brought to a size: shift-sum, l1, none",
    "order": "order of the sweep's intervals: shuffle (the paper), blocks, mirrored (cancels drift)",
    "p_init": "mixture to start with, for S_init steps",
    "prior": "preference before anything is known: uniform or natural",
    "proxy": "only the proxy run itself, whose mixture moves at every step; its mean is what the method recommends",
    "r": "share of the batch taken from validation data; None: the paper's",
    "ridge": "made-up runs per group that saw the average loss: a pull towards 'it does not matter'",
    "rounds": "T: how often the mixture is updated; None: 20, fewer where rounds would be too short",
    "rule": "the paper's update, or normalised as in its authors' code",
    "runs": "mixtures to try in the sweep",
    "s": "exponent of the credit: how much a group's own recent share explains its progress",
    "S_init": "steps of p_init before the first round",
    "shrink": "shrink contrasts that are within their standard errors",
    "smoothing": "share of uniform mixed in after each update",
    "top": "best simulated mixtures to average",
    "trees": "trees per target",
    "warmup": "share of the run before anything is fitted",
    "window": "how many rounds count",
}
"""What settings mean, unless the method's docstring says otherwise in a line `name: meaning`."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint at the name that was meant, if one is near."""
    names = list(known)
    swapped = [name for name in names if sorted(name) == sorted(word)]
    close = swapped or difflib.get_close_matches(word, names, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of a type as settings are annotated."""
    options = get_args(wanted)
    if get_origin(wanted) is Literal:
        return value in options
    if get_origin(wanted) in (Union, UnionType):
        return any(fits(value, option) for option in options)
    if wanted is None or wanted is NoneType:
        return value is None
    if wanted is bool:
        return isinstance(value, (bool, np.bool_))
    if wanted is int:
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if wanted is float:
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        return number and math.isfinite(value)
    if get_origin(wanted) is Mapping:
        return isinstance(value, Mapping)
    if get_origin(wanted) is Sequence:
        return isinstance(value, (list, tuple, np.ndarray)) and all(fits(v, options[0]) for v in value)
    return True


def in_words(wanted: Any) -> str:
    """A type as people say it."""
    options = get_args(wanted)
    if get_origin(wanted) is Literal:
        return "one of " + ", ".join(map(str, options))
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(dict.fromkeys(in_words(option) for option in options))
    names = {bool: "true or false", int: "a whole number", float: "a number", NoneType: "none"}
    if get_origin(wanted) is Sequence:
        return "a list of lists of numbers" if get_origin(options[0]) is Sequence else "a list of numbers"
    return names.get(wanted, "a dict by name")
