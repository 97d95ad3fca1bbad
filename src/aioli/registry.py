"""The registry of methods: find them by name and check their settings.

In: functions decorated with `method`. Out: `create(name, **settings)`, a `Method` that plans runs for a `Problem`.
`carrying` carries plans out.
"""

from __future__ import annotations

import hashlib
import inspect
import runpy
import sys
import sysconfig
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from aioli.options import MEANINGS, fits, in_words, nearest
from aioli.policies import RulePolicy
from aioli.runs.spec import Problem, Result, Run
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
        first, apart, rest = plain.partition(":")
        if apart and first in _METHODS:
            raise ValueError(f"{name!r} is a method with settings; here these stand apart: method.settings.{rest}")
        raise ValueError(
            f"there is no method {name!r}{nearest(plain, _METHODS)}; known: {', '.join(_METHODS)}, aioli+NAME"
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


def _checked(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, each known to the method and of its type."""
    allowed = settings_of(name)
    for key, value in settings.items():
        if key not in allowed:
            has = ", ".join(allowed) or "none"
            raise ValueError(f"{name} has no setting {key!r}{nearest(key, allowed)}; it has: {has}")
        wanted = allowed[key].annotation
        if wanted is not inspect.Parameter.empty and not fits(value, wanted):
            raise ValueError(f"{name}: {key}={value!r} must be {in_words(wanted)}")
    return dict(settings)


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
                    f"policy() takes no {key!r}{nearest(key, known)}; it takes groups, steps, {', '.join(known)}"
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
