"""What a recipe asks for: which groups, which targets, and the `Problem` that methods plan for. Needs no torch."""

from __future__ import annotations

from aioli.data.store import TokenStore
from aioli.runs.spec import Problem, by_name
from aioli.train.recipe import TrainRecipe


def groups_and_targets(store: TokenStore, recipe: TrainRecipe) -> tuple[list[str], list[str]]:
    """What is trained on and what is validated on."""
    sizes = dict(zip(store.groups, store.sequences("train").tolist(), strict=True))
    chosen = recipe.data.groups or [g for g in store.groups if sizes[g] > 0 and g not in recipe.data.targets]
    targets = recipe.data.targets or chosen
    for kind, names in (("data.groups", chosen), ("data.targets", targets)):
        unknown = [name for name in names if name not in store.groups]
        if unknown:
            raise ValueError(f"{kind} names {unknown[0]!r}, but {store.path} has {', '.join(store.groups)}")
    if not chosen:
        raise ValueError(
            f"no group is left to train on: {store.path} has {', '.join(store.groups)}, and data.targets takes "
            f"{', '.join(targets)}; name the groups to train on in data.groups"
        )
    if "val" not in store.parts:
        raise ValueError(f"{store.path} has no validation split; prepare it with splits.val above 0")
    return list(chosen), list(targets)


def problem_of(recipe: TrainRecipe, store: TokenStore, groups: list[str], targets: list[str]) -> Problem:
    """What a method is asked."""
    sizes = dict(zip(store.groups, store.sequences("train").tolist(), strict=True))
    for name, weight in recipe.data.weights.items():
        if not 0 <= weight < float("inf"):
            raise ValueError(f"data.weights.{name}={weight} must be a number that is not negative")
    return Problem(
        groups=tuple(groups),
        steps=recipe.train.steps,
        targets=None if targets == groups else tuple(targets),
        seed=recipe.seed,
        budget=recipe.budget,
        target_weights=by_name(recipe.data.weights or None, tuple(targets), "data.weights", 1.0),
        sizes=tuple(sizes[g] for g in groups),
        proxy_steps=recipe.proxy.steps,
    )
