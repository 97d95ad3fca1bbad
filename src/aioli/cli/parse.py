"""What several commands are told: recipes, methods with settings, budgets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aioli.config import parse_settings
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
                found[label] = create(each, **parse_settings(tail))
    return list(found.items())


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
