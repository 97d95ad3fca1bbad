"""Reference pages out of the code: fields of recipes from their models, options of commands from their parsers.

`generate.py` puts what these functions return between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import argparse
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import griffe
import yaml

from aioli.cli import parser
from aioli.cli.methods import one
from aioli.data.recipe import DataRecipe, ready
from aioli.methods import names
from aioli.recipe import Section
from aioli.train.recipe import TrainRecipe

ROOT = Path(__file__).resolve().parent.parent
BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "min_length": "at least {}"}
KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)


# ---------------------------------------------------------------- recipes


def kind_of(annotation: Any) -> str:
    """A type in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, UnionType):
        kinds = dict.fromkeys(kind_of(each) for each in inner if each is not NoneType)
        return " or ".join(kinds)
    if origin is list:
        return f"list of {kind_of(inner[0])}"
    if origin is tuple:
        return f"{len(inner)} numbers"
    if origin is dict:
        return f"{kind_of(inner[1])} by name"
    return "section" if _section(annotation) else KINDS[annotation]


def default_of(info: Any) -> str:
    """A default as it would be written."""
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    if isinstance(value, Section):
        value = value.model_dump(exclude_defaults=True) or None
    if value is None:
        return "–"
    if isinstance(value, dict):
        value = yaml.safe_dump(value, default_flow_style=True).strip()
    if isinstance(value, tuple):
        value = list(value)
    if isinstance(value, bool):
        value = str(value).lower()
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def bounds_of(info: Any) -> str:
    found = [
        words.format(f"{bound:g}" if isinstance(bound, float) else bound)
        for constraint in info.metadata
        for name, words in BOUNDS.items()
        if (bound := getattr(constraint, name, None)) is not None
    ]
    return ", ".join(found)


def _section(annotation: Any) -> type[Section] | None:
    """The section that a field holds, if it holds one, or a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _section(inner))), None)


def sections(model: type[Section], path: str = "") -> dict[type[Section], str]:
    """A model and the sections inside it, each with the path where it first stands."""
    found = {model: path}
    for name, info in model.model_fields.items():
        if (inner := _section(info.annotation)) is not None:
            for section, place in sections(inner, f"{path}.{name}".lstrip(".")).items():
                found.setdefault(section, place)
    return found


def recipe(model: type[Section]) -> str:
    """Every section of a recipe with its fields: what it may be, what it is if left out, what it means."""
    places = sections(model)
    parts = []
    for section, place in places.items():
        rows = []
        for name, info in section.model_fields.items():
            kind = ", ".join(filter(None, [kind_of(info.annotation), bounds_of(info)]))
            if (inner := _section(info.annotation)) is not None:
                kind = kind.replace("section", f"[section](#{places[inner].replace('.', '')})")
            rows.append((f"`{name}`", kind, default_of(info), " ".join((info.description or "").split())))
        if place:
            parts += [f"### {place}", " ".join((section.__doc__ or "").split())]
        parts.append(table(("field", "what", "if left out", "meaning"), rows))
    return "\n\n".join(parts)


def ready_recipes() -> str:
    """The recipes that come with the package, with what their first comment says."""
    rows = []
    for name, text in sorted(ready().items()):
        lines = itertools.takewhile(
            lambda line: line.startswith("# ") and not line.startswith("#  "), text.splitlines()
        )
        rows.append((f"`{name}`", " ".join(line[2:] for line in lines)))
    return table(("recipe", "what it is"), rows)


# ---------------------------------------------------------------- commands


def commands() -> str:
    """Every command: what it does, its arguments and options, its examples."""
    subcommands = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    short = {action.dest: action.help or "" for action in subcommands._choices_actions}
    parts = [table(("command", "what it does"), [(f"[`{n}`](#aioli-{n})", words) for n, words in short.items()])]
    for name, command in subcommands.choices.items():
        parts += [f"## aioli {name}", _about(command, short[name])]
        parts.append(f"```text\n{_usage(name, command)}\n```")
        rows = [row for action in command._actions if (row := _option(command, action))]
        parts.append(table(("", "if left out", "meaning"), rows))
        if command.epilog:
            parts.append(f"```text\n{command.epilog.strip()}\n```")
    return "\n\n".join(parts)


def _about(command: argparse.ArgumentParser, short: str) -> str:
    """The description, or what the list of commands says; lines that are laid out stay so."""
    about = (command.description or short).strip()
    head, _, rest = about.partition("\n")
    sentence = head[0].upper() + head[1:] + ("" if head[-1] in ".:" else ".")
    return f"{sentence}\n\n```text\n{rest}\n```" if rest else sentence


def _usage(name: str, command: argparse.ArgumentParser) -> str:
    words = [f"aioli {name}"]
    for action in command._actions:
        if not action.option_strings:
            words.append(_repeated(action))
        elif action.required:
            words.append(f"{action.option_strings[-1]} {_repeated(action)}")
    return " ".join([*words, "[options]"])


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        return str(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _repeated(action: argparse.Action) -> str:
    form = {"?": "[{}]", "*": "[{} …]", "+": "{} …"}.get(str(action.nargs), "{}")
    return form.format(_value(action))


def _option(command: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str, str] | None:
    """A row of the table of options; `--help` needs none."""
    if isinstance(action, argparse._HelpAction):
        return None
    if not action.option_strings:
        name = f"`{_value(action)}`"
    else:
        value = "" if action.nargs == 0 else f" {_repeated(action)}"
        name = f"`{', '.join(action.option_strings)}{value}`"
    plain = isinstance(action.default, str | int | float) and not isinstance(action.default, bool)
    meaning = (
        re.sub(r" \(default:? [^()]*(\([^()]*\))?[^()]*\)$", "", action.help or "") if plain else action.help or ""
    )
    default = f"`{action.default}`" if plain else ""
    return name, default, meaning.replace("%%", "%")


def settings(name: str) -> str:
    """The settings of a method."""
    rows = [(f"`{s['setting']}`", f"`{s['default']}`", s["meaning"]) for s in one(name)["settings"]]
    return table(("setting", "default", "meaning"), rows)


# ---------------------------------------------------------------- Python

PYTHON = {
    "loops": (
        "aioli",
        "aioli.data",
        "aioli.adapters.pytorch",
        "aioli.adapters.huggingface",
        "aioli.adapters.lightning",
        "aioli.train",
        "aioli.groups",
    ),
    "laws": ("aioli.fits", "aioli.lmo", "aioli.export", "aioli.simplex"),
    "methods": (
        "aioli.methods",
        "aioli.policies",
        "aioli.testing",
        "aioli.simulate",
        "aioli.runs",
        "aioli.analysis",
        "aioli.evaluate",
    ),
}
"""Which packages each page is about. A name stands where it comes first."""


ABOUT = "{members: false, show_root_heading: false, show_root_toc_entry: false}"
"""Of a package only what its docstring says."""


def python(page: str) -> str:
    """Every public name of the packages of a page, for mkdocstrings to fill in."""
    aioli: Any = griffe.load("aioli", search_paths=[ROOT / "src"])
    seen: dict[str, str] = {}
    parts: list[str] = []
    for here, paths in PYTHON.items():
        for path in paths:
            package = aioli if path == "aioli" else aioli[path.removeprefix("aioli.")]
            known, new = [], []
            for name in _public(package):
                place = package[name].final_target.path if package[name].is_alias else package[name].path
                if place in seen:
                    known.append(f"[`{name}`][{seen[place]}]")
                else:
                    seen[place] = f"{package.path}.{name}"
                    new.append(f"::: {package.path}.{name}")
            if here == page:
                parts += [f"## {package.path}", f"::: {package.path}\n    options: {ABOUT}"]
                parts += ["Also here: " + ", ".join(known) + "."] if known else []
                parts += new
    return "\n\n".join(parts)


def _public(package: Any) -> list[str]:
    """What a package says it exports; else the classes and functions that are defined in it."""
    if package.exports is not None:
        said = [str(name) for name in package.exports if not str(name).startswith("_")]
        # a function may hide a module of its name: what is meant is the function, where there is one
        said = [
            f"{name}.{name}" if package[name].is_module and name in package[name].members else name for name in said
        ]
        return [name for name in said if not package[name].is_module]
    own = [name for name, each in package.members.items() if not each.is_alias and (each.is_class or each.is_function)]
    return [name for name in own if not name.startswith("_")]


PARTS: dict[str, Callable[[], str]] = {
    "recipe of prepare": lambda: recipe(DataRecipe),
    "recipe of train": lambda: recipe(TrainRecipe),
    "ready recipes": ready_recipes,
    "commands": commands,
    **{f"settings {name}": partial(settings, name) for name in names()},
    **{f"python {page}": partial(python, page) for page in PYTHON},
}
