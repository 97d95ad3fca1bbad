"""From a recipe to the parts of a run: groups and targets, the policy, the engine."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from accelerate.utils import LoggerType

from aioli.config import from_config
from aioli.data.sampler import MixtureSampler
from aioli.data.store import TokenStore
from aioli.policies import RulePolicy, fork_steps, looks, rehearsed
from aioli.recipe import build, read
from aioli.registry import create
from aioli.train import checkpoint
from aioli.train.engine import Engine, Settings, new_accelerator
from aioli.train.layout import MODEL, RECIPE, RESULT
from aioli.train.models import build_model, load_model
from aioli.train.optimizer import Schedule
from aioli.train.probes import Validation
from aioli.train.problem import problem_of
from aioli.train.recipe import TrainRecipe
from aioli.train.validation import FORWARD_SHARE, LOOKS, OVERVIEW, budget, subset

SHORT = 20
"""Steps of a fork below which it misleads more often than not (docs/methods.md)."""
FEW = 8
"""Validation sequences of a target below which a look is mostly noise."""


def build_accelerator(recipe: TrainRecipe, path: Path) -> Accelerator:
    """Device, precision, processes and trackers, as the recipe and the launcher say."""
    known = [str(name.value) for name in LoggerType if name.value != "all"]
    installed = {str(getattr(name, "value", name)) for name in get_available_trackers()}
    for name in recipe.trackers:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise ValueError(f"trackers names {name!r}, which is no tracker; {hint}")
        if name not in installed:
            raise ValueError(f"trackers names {name!r}, which is not installed; pip install {name}")
    choice = recipe.train.precision
    able = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    precision = "bf16" if choice == "bf16" or (choice == "auto" and able) else "no"
    return new_accelerator(precision, log_with=recipe.trackers or None, project_dir=str(path))


def build_policy(recipe: TrainRecipe, store: TokenStore, groups: list[str], targets: list[str]) -> RulePolicy:
    """Who chooses the mixture of this run."""
    problem = problem_of(recipe, store, groups, targets)
    if recipe.method.rules is not None:
        found = RulePolicy(from_config(recipe.method.rules), problem.task(recipe.train.steps))
    else:
        found = create(recipe.method.name, **recipe.method.settings).policy(
            problem.groups,
            problem.steps,
            targets=problem.targets,
            seed=problem.seed,
            target_weights=problem.target_weights,
            sizes=problem.sizes,
        )
    if {"excess_loss", "token_excess_loss"} & found.needs and recipe.method.reference is None:
        raise ValueError(
            f"{recipe.method.name} compares with a reference model; name a finished run in method.reference, such as "
            "one trained with method=stratified"
        )
    if recipe.method.reference is not None and not {"excess_loss", "token_excess_loss"} & found.needs:
        raise ValueError(
            f"method.reference is given, but {recipe.method.name} compares with no reference; leave it out"
        )
    return found


def worth_knowing(recipe: TrainRecipe, policy: RulePolicy, validation: Validation) -> list[str]:
    """What looking will cost where it cannot be kept small, and how little is looked at."""
    count, found = looks(policy), []
    sequences, trained = len(validation.ids), recipe.train.steps * recipe.train.batch
    share = FORWARD_SHARE * count * sequences / trained
    if share > 1.5 * recipe.val.share:
        found.append(
            f"{count} looks at {sequences} validation sequences will take about {share:.0%} of the training compute; "
            "use fewer rounds, a smaller k, or larger batches"
        )
    if forks := fork_steps(policy):
        each = max(segment.fork_steps for segment in rehearsed(policy))
        more = f"{forks / recipe.train.steps:.0%} more"
        # those that are left when others are tried out no more have more steps each, and as many in all
        text = f"mixtures are tried out on copies of the model, {each} steps each, up to about {forks} in all: {more}"
        found.append(text if each >= SHORT else f"{text}; so few tell little: use a larger delta, or a longer run")
    if count and sequences < FEW * validation.targets:
        each = sequences // validation.targets
        found.append(
            f"each look takes {each} validation sequence{'s' * (each != 1)} of each target, which is little to learn "
            "from; use fewer rounds or a larger val.share"
        )
    return found


def build_engine(
    recipe: TrainRecipe,
    store: TokenStore,
    groups: list[str],
    targets: list[str],
    policy: RulePolicy,
    accelerator: Accelerator,
    after_step: Callable[[Engine], None],
    first: int = 0,
) -> Engine:
    """The model in training, with the data it is trained and validated on."""
    data, train, n = recipe.data, recipe.train, len(targets)
    rank, world = accelerator.process_index, accelerator.num_processes
    if train.batch % world:
        raise ValueError(f"train.batch={train.batch} cannot be shared by {world} processes; use a multiple of {world}")
    sampler = MixtureSampler(
        store,
        train.batch,
        recipe.seed,
        groups=groups,
        on_exhausted=data.on_exhausted,
        max_epochs=data.max_epochs,
        rank=rank,
        world=world,
    )
    count = looks(policy)
    tokens = train.batch * store.context
    each = budget(count, train.steps, tokens, store.context, n, recipe.val.share) if count else 1
    if recipe.val.tokens is not None:
        each = max(1, recipe.val.tokens // (n * store.context))
    validation = subset(store, targets, "val", each, recipe.seed, recipe.val.batch)
    choice = recipe.model
    model = build_model(
        choice.preset,
        choice.name,
        vocabulary=store.vocabulary,
        context=store.context,
        seed=recipe.seed,
        revision=choice.revision,
        scratch=choice.scratch,
        overrides=choice.config,
    )
    val_sampler = None
    asked = policy.ask()
    if {"grad_inner", "grad_norm"} & policy.needs and asked is not None:
        beside = max(1 if recipe.val.gradients == "sum" else n, round((asked.val_share or 0.5) * train.batch))
        val_sampler = MixtureSampler(store, beside, recipe.seed, "val", targets)
    reference = None if recipe.method.reference is None else _reference(recipe.method.reference, store)
    return Engine(model, sampler, validation, _settings(recipe, first), accelerator, reference, val_sampler, after_step)


def every_steps(recipe: TrainRecipe) -> int:
    """Steps between looks that are for the journal."""
    return recipe.val.every or max(1, recipe.train.steps // LOOKS)


def build_overview(recipe: TrainRecipe, store: TokenStore, targets: list[str]) -> Validation:
    """What is looked at for the journal: the same whatever the method, so that curves of runs can be compared."""
    train, n = recipe.train, len(targets)
    count = max(1, train.steps // every_steps(recipe))
    each = budget(count, train.steps, train.batch * store.context, store.context, n, OVERVIEW)
    return subset(store, targets, "val", each, recipe.seed, recipe.val.batch)


def _settings(recipe: TrainRecipe, first: int) -> Settings:
    train = recipe.train
    horizon = train.horizon or first + train.steps
    warmup = round(train.warmup * horizon) if train.warmup < 1 else int(train.warmup)
    schedule = Schedule(train.lr, horizon, warmup, train.floor)
    matrix = recipe.val.gradients == "matrix"
    return Settings(schedule, train.betas, train.eps, train.decay, train.clip, train.accumulate, train.compile, matrix)


def parent_checkpoint(recipe: TrainRecipe) -> Path | None:
    """The last checkpoint of the run that is gone on from."""
    if recipe.parent is None:
        return None
    folder = Path(recipe.parent)
    found = checkpoint.latest(folder)
    if not (folder / RESULT).is_file() or found is None:
        lacks = "its last checkpoint" if (folder / RESULT).is_file() else "a result"
        raise ValueError(f"parent={recipe.parent} cannot be gone on from: it has no {lacks}")
    before = build(TrainRecipe, read(folder / RECIPE), str(folder / RECIPE))
    for name, mine, other in (
        ("model", recipe.model, before.model),
        ("seed", recipe.seed, before.seed),
        ("train.batch", recipe.train.batch, before.train.batch),
    ):
        if mine != other:
            raise ValueError(f"parent={recipe.parent} has another {name}; a run goes on with the one it has")
    return found


def _reference(path: str, store: TokenStore) -> torch.nn.Module:
    """The model of a finished run."""
    missing = [name for name in (RESULT, MODEL) if not (Path(path) / name).exists()]
    if missing:
        raise ValueError(f"method.reference={path} is not a finished run: it has no {missing[0]}")
    found = load_model(str(Path(path) / MODEL))
    if found.config.vocab_size < store.vocabulary:
        raise ValueError(
            f"the model of method.reference={path} knows {found.config.vocab_size} tokens, the data has "
            f"{store.vocabulary}; train the reference on the same store"
        )
    return found
