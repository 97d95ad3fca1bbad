"""What several commands are told: recipes, methods with settings, budgets."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aioli.methods import Method, create, names

if TYPE_CHECKING:
    from aioli.train.recipe import TrainRecipe


def parse_methods(texts: list[str]) -> list[tuple[str, Method]]:
    """`all`, or names with settings: `aioli:eta=0.5,k=8`."""
    found: dict[str, Method] = {}
    for text in texts:
        head, colon, tail = text.partition(":")
        for name in [head] if colon else head.split(","):
            for each in names() if name == "all" else [name]:
                label = each + (colon + tail if tail else "")
                found[label] = create(each, **_parse_settings(tail))
    return list(found.items())


def _parse_settings(text: str) -> dict[str, Any]:
    """`eta=0.5,caps=[0.5,1,1]`: values are JSON where they can be, words otherwise."""
    settings: dict[str, Any] = {}
    for part in filter(None, re.split(r",(?![^\[{]*[\]}])", text)):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"setting {part!r} is not KEY=VALUE")
        try:
            settings[key] = None if value == "None" else json.loads(value)
        except json.JSONDecodeError:
            settings[key] = _literal(value)
    return settings


def _literal(text: str) -> Any:
    """A value as Python writes it, such as {'runs': 5}; anything else is a word."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def parse_budget(text: str) -> str | float:
    """A name or a number."""
    try:
        return float(text)
    except ValueError:
        return text


def train_recipe(source: str | None, settings: Sequence[str]) -> TrainRecipe:
    """A recipe with settings changed; without a file, `source` may be the first setting."""
    from aioli.data import TokenStore
    from aioli.recipe import build, override, read
    from aioli.train.recipe import TrainRecipe

    plain, where, changes = {}, "settings", list(settings)
    if source is None or ("=" in source and not Path(source).exists()):  # the recipe may stand after settings
        files = [word for word in changes if "=" not in word and Path(word).suffix in (".yaml", ".yml")]
        if files:
            changes = [*([] if source is None else [source]), *(word for word in changes if word != files[0])]
            source = files[0]
    if source is not None and "=" in source and not Path(source).exists():
        changes.insert(0, source)
    elif source is not None:
        if Path(source).is_dir():
            raise ValueError(f"{source} is a directory, not a recipe; for a token store: data={source}")
        plain, where = read(source), source
    recipe = build(TrainRecipe, override(plain, changes, TrainRecipe), where)
    TokenStore(recipe.data.store)
    return recipe
