"""The registry of methods: find them by name, check their settings, carry them out.

In: functions decorated with `method`. Out: `create(name, **settings)`, a `Method` that plans runs for a `Problem`, and
`conduct`, which carries a plan out with any function that trains runs.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import math
import runpy
import sys
import sysconfig
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import numpy as np

from aioli.policies import RulePolicy
from aioli.runs.spec import Planned, Problem, Result, Run, closure
from aioli.simplex import check_groups

Plan = Generator[list[Run], list[Result], Run]
Function = Callable[..., "Run | Plan"]
Vector = Sequence[float] | Mapping[str, float] | None
"""A number per group, as a list in their order or a dict by name."""


@dataclass(frozen=True)
class Row:
    """A method's row in Table 1."""

    law: str
    parameters: str
    solver: str
    lmo: bool = True
    """Whether the method is an instance of the framework."""


_METHODS: dict[str, tuple[Function, Row]] = {}
_VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {}
_ADDITION: list[Function] = []
_LOADED: dict[str, str] = {}


def method(law: str, parameters: str, solver: str, lmo: bool = True) -> Callable[[Function], Function]:
    """Register a function as a method; underscores in its name become hyphens."""

    def add(function: Function) -> Function:
        name = function.__name__.replace("_", "-")
        if name in _METHODS and _METHODS[name][0].__module__.startswith("aioli."):
            raise ValueError(f"{name!r} is a method of aioli's own; give yours another name")
        _METHODS[name] = (function, Row(law, parameters, solver, lmo))
        return function

    return add


def variant(of: Function, name: str, about: str, row: Row, fixed: dict[str, Any], **defaults: Any) -> None:
    """Register a method again, with some settings fixed and others defaulted differently."""

    def planned(problem: Problem, **settings: Any) -> Run | Plan:
        return of(problem, **{**defaults, **settings, **fixed})

    planned.__doc__ = about
    _METHODS[name] = (planned, row)
    _VARIANTS[name] = (of.__name__, fixed, defaults)


def addition(function: Function) -> Function:
    """Register how `aioli+NAME` plans: called with the problem, NAME's method, and aioli's settings."""
    _ADDITION.append(function)
    return function


def load(files: Iterable[str]) -> None:
    """Run Python files of the user's that define methods."""
    for file in files:
        place = Path(file)
        if not place.is_file():
            raise ValueError(f"--load {file}: there is no such file")
        sys.path.append(str(place.resolve().parent))  # it may import what lies beside it
        try:
            runpy.run_path(file)
        except Exception as error:
            what = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else where_from(error)
            raise ValueError(f"--load {file} is not a Python file that can be run: {what}") from None
        finally:
            sys.path.pop()
        _LOADED[str(place.resolve())] = hashlib.sha256(place.read_bytes()).hexdigest()


def where_from(error: Exception) -> str:
    """An error in a line; one that is not a complaint of aioli's, with its kind and the user's line it comes from."""
    others = (str(Path(__file__).parent), sysconfig.get_paths()["stdlib"], "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    outside = [frame for frame in frames if "site-packages" not in frame.filename]
    place = f" ({Path(outside[-1].filename).name}, line {outside[-1].lineno})" if outside else ""
    return str(error) if isinstance(error, ValueError) and not outside else f"{type(error).__name__}: {error}{place}"


def loaded() -> list[str]:
    """Hashes of the files of the user's that were loaded."""
    return list(_LOADED.values())


def names() -> list[str]:
    """All methods, in the order of the paper; `aioli+NAME` adds Aioli to any that is not Aioli."""
    return list(_METHODS)


def create(name: str, **settings: Any) -> Method:
    """A method by name with its settings. For `aioli+NAME`, settings of NAME go in `base={…}`."""
    plain = name.replace("_", "-").lower()
    if plain.startswith("aioli+"):
        inner = settings.pop("base", {})
        if not isinstance(inner, Mapping):
            raise ValueError(f"base={inner!r} must be a dict of settings, such as {{'runs': 5}}")
        base = create(plain.removeprefix("aioli+"), **inner)
        if base.name.startswith("aioli"):
            raise ValueError(f"{name!r}: aioli can be added to any method but itself")
        for key in settings:
            if key not in settings_of("aioli") and key in settings_of(base.name):
                raise ValueError(f'{key} is a setting of {base.name}; in {plain}, write base={{"{key}": …}}')
        return Method(plain, _checked("aioli", settings), base)
    if plain not in _METHODS:
        raise ValueError(
            f"there is no method {name!r}{_nearest(plain, _METHODS)}; known: {', '.join(_METHODS)}, aioli+NAME"
        )
    return Method(plain, _checked(plain, settings))


def settings_of(name: str) -> dict[str, inspect.Parameter]:
    """The settings that a method takes, with their types and defaults: its keyword arguments."""
    if name in _VARIANTS:
        of, fixed, defaults = _VARIANTS[name]
        own = {key: p for key, p in settings_of(of).items() if key not in fixed}
        return {key: p.replace(default=defaults.get(key, p.default)) for key, p in own.items()}
    parameters = inspect.signature(_METHODS[name][0], eval_str=True).parameters
    return {key: p for key, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _checked(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, each known to the method and of its type."""
    allowed = settings_of(name)
    for key, value in settings.items():
        if key not in allowed:
            has = ", ".join(allowed) or "none"
            raise ValueError(f"{name} has no setting {key!r}{_nearest(key, allowed)}; it has: {has}")
        wanted = allowed[key].annotation
        if wanted is not inspect.Parameter.empty and not _fits(value, wanted):
            raise ValueError(f"{name}: {key}={value!r} must be {_words(wanted)}")
    return dict(settings)


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of a type as settings are annotated."""
    options = get_args(wanted)
    if get_origin(wanted) is Literal:
        return value in options
    if get_origin(wanted) in (Union, UnionType):
        return any(_fits(value, option) for option in options)
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
        return isinstance(value, (list, tuple, np.ndarray)) and all(_fits(v, options[0]) for v in value)
    return True


def _words(wanted: Any) -> str:
    """A type as people say it."""
    options = get_args(wanted)
    if get_origin(wanted) is Literal:
        return "one of " + ", ".join(map(str, options))
    if get_origin(wanted) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_words(option) for option in options))
    names = {bool: "true or false", int: "a whole number", float: "a number", NoneType: "none"}
    if get_origin(wanted) is Sequence:
        return "a list of lists of numbers" if get_origin(options[0]) is Sequence else "a list of numbers"
    return names.get(wanted, "a dict by name")


@dataclass(frozen=True)
class Method:
    """A method with its settings, ready to plan."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    base: Method | None = None
    """For `aioli+NAME`: the method that Aioli adjusts."""

    @property
    def row(self) -> Row:
        """Its row in Table 1."""
        return _METHODS["aioli" if self.base is not None else self.name][1]

    @property
    def own(self) -> bool:
        """Whether it is one of aioli's."""
        named = "aioli" if self.base is not None else self.name
        return _METHODS[named][0].__module__.startswith("aioli.") and (self.base is None or self.base.own)

    def plan(self, problem: Problem) -> Plan:
        """Yields stages of runs, receives their results, returns the final run."""
        if self.base is not None:
            planned = _ADDITION[-1](problem, self.base, **self.settings)
        else:
            planned = _METHODS[self.name][0](problem, **self.settings)
        if isinstance(planned, Generator):
            planned = yield from planned
        return planned

    def policy(self, groups: int | Sequence[str], steps: int, **problem: Any) -> RulePolicy:
        """The policy of a method that needs no extra runs, for use in a training loop."""
        if isinstance(groups, int):
            check_groups(groups)
            groups = [f"group{j}" for j in range(groups)]
        known = [f.name for f in fields(Problem) if f.name not in {"groups", "steps"}]
        for key in problem:
            if key not in known:
                raise ValueError(
                    f"policy() takes no {key!r}{_nearest(key, known)}; it takes groups, steps, {', '.join(known)}"
                )
        labels = (
            tuple(groups) if not isinstance(groups, str) else cast(tuple[str, ...], groups)
        )  # Problem refuses a str
        asked = Problem(labels, steps, **problem)
        plan, run = self.plan(asked), None
        try:
            stage = next(plan)
        except StopIteration as end:
            run = end.value
        if isinstance(run, Run):
            policy = run.policy()
            policy.groups, policy.targets, policy.method = labels, asked.targets, self.name
            return policy
        shortcuts = {"proxy": "set proxy=true to train its proxy run alone", "graph": "give the graph it would learn"}
        found = [words for key, words in shortcuts.items() if self.base is None and key in settings_of(self.name)]
        remedy = found[0] if found else "carry out its plan with `aioli mix`"
        raise ValueError(
            f"{self.name} needs extra runs before the final one ({len(stage)} in its first stage), so it cannot drive "
            f"a loop by itself; {remedy}, or use a method without extra runs such as aioli"
        )


@dataclass(frozen=True)
class Outcome:
    """A method carried out: its final run and result, and every extra run it took."""

    final: Run
    result: Result
    extra: tuple[Run, ...]
    extra_results: tuple[Result, ...]

    @property
    def extra_runs(self) -> int:
        """Counted, never typed."""
        return len({run.key for run in self.extra})


class Carrying:
    """A plan that is being carried out: `stage` is to be trained next, until there is the `final` run."""

    def __init__(self, method: Planned, problem: Problem) -> None:
        self.method, self.problem = method, problem
        self.extra: list[Run] = []
        self.results: list[Result] = []
        self.stage: list[Run] = []
        self.final: Run | None = None
        self._plan = method.plan(problem)
        self._go_on(None)

    def tell(self, results: list[Result]) -> None:
        """What came of the stage."""
        self.extra += self.stage
        self.results += results
        self._go_on(results)

    def _go_on(self, results: list[Result] | None) -> None:
        try:
            stage = next(self._plan) if results is None else self._plan.send(results)
        except StopIteration as end:
            final, self.stage = end.value, []
            if not isinstance(final, Run) or final.task.steps != self.problem.steps:
                raise ValueError(
                    f"{self.method.name} must return the final run, of {self.problem.steps} steps (problem.final), not "
                    f"{final!r}"
                ) from None
            final.policy()  # refuses, now, rules that cannot work for this task
            self.final = final
            return
        if not isinstance(stage, list) or not all(isinstance(run, Run) for run in stage):
            raise ValueError(f"{self.method.name} must yield lists of runs, not {stage!r}")
        for run in stage:
            run.policy()
        self._within_budget(stage)
        self.stage = stage

    def _within_budget(self, stage: list[Run]) -> None:
        steps = sum(run.task.steps for run in {run.key: run for run in closure([*self.extra, *stage])}.values())
        if steps > self.problem.allowed_steps + 1e-9:
            raise ValueError(
                f"{self.method.name} plans {steps} extra steps, but the budget is {self.problem.allowed_steps:g} "
                f"({self.problem.budget}); problem.extra_steps(runs) says how long each may be"
            )

    def outcome(self, result: Result) -> Outcome:
        """With the result of the final run."""
        assert self.final is not None
        return Outcome(self.final, result, tuple(self.extra), tuple(self.results))


def conduct(
    method: Method | str,
    problem: Problem,
    train: Callable[[list[Run]], list[Result]],
    train_final: Callable[[Run], Result] | None = None,
) -> Outcome:
    """Carry out a method, with `train` doing the runs of a stage: it maps a list of runs to their results.

    `train_final` does the final run, where that is to be done otherwise.
    """
    method = create(method) if isinstance(method, str) else method
    carrying = Carrying(method, problem)
    while (final := carrying.final) is None:
        carrying.tell(train(carrying.stage))
    return carrying.outcome(train([final])[0] if train_final is None else train_final(final))


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


def explain(name: str, setting: str | None = None) -> str:
    """What a method does, or what one of its settings means."""
    function = _METHODS[name][0]
    about = inspect.getdoc(function) or _VARIANTS.get(name, ("", {}, {}))[0]
    if setting is None:
        return "\n".join(line for line in about.splitlines() if line.partition(":")[0].strip() not in settings_of(name))
    for line in about.splitlines():
        if line.strip().startswith(f"{setting}:"):
            return line.partition(":")[2].strip()
    return MEANINGS.get(setting, "")
