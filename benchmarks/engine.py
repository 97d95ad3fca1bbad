"""Speed of the engine beside a bare PyTorch loop on the same model and data: JSON, ratios measured in one run.

    python benchmarks/engine.py [--total 2000] [--rounds 12] [--threads 1] [-o benchmarks/results/engine.json]

Contenders take turns, a few steps each, so that a busy machine slows all of them; ratios are taken within a turn.
`bare` is what a user would write: rows of a memory map, forward, backward, clip, AdamW, a learning rate. DoGE and
DoReMi are also done the plain way, with a backward or forward pass for each group;
DoGE's gradients then serve its step as well.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import aioli
from aioli.data import MixtureSampler, TokenStore, write_store
from aioli.policies import looks
from aioli.protocol import Segment
from aioli.train import Engine, Run, Schedule, Settings, StoppedError, TrainRecipe
from aioli.train.memory import keep_memory
from aioli.train.models import build_model
from aioli.train.optimizer import adamw
from aioli.train.validation import budget, subset

VOCABULARY, CONTEXT, BATCH, STEPS = 512, 64, 16, 10


def make_store(folder: Path, m: int) -> TokenStore:
    rng = np.random.default_rng(0)
    names = [f"g{j}" for j in range(m)]
    splits = {
        split: {name: rng.integers(0, VOCABULARY, size) for name in names}
        for split, size in (("train", 200_000), ("val", 20_000))
    }
    return write_store(folder / f"store-{m}", splits, CONTEXT, VOCABULARY)


def new_model() -> torch.nn.Module:
    return build_model("tiny", None, vocabulary=VOCABULARY, context=CONTEXT, seed=0)


def settings(steps: int) -> Settings:
    return Settings(Schedule(1e-3, steps, 10))


def bare(store: TokenStore, steps: int, batch: int = BATCH) -> Callable[[], None]:
    """The loop that a user would write."""
    model, schedule = new_model(), Schedule(1e-3, 10**6, 10)
    optimizer = adamw(model, 1e-3, (0.9, 0.95), 1e-8, 0.1)
    rows = store.rows(0, "train")
    order = np.random.default_rng(0).permutation(len(rows))
    position = itertools.count()

    def train() -> None:
        for _ in range(steps):
            step = next(position)
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(step)
            chosen = order[np.arange(step * batch, (step + 1) * batch) % len(order)]
            ids = torch.from_numpy(rows[chosen].astype(np.int64))
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not np.isfinite(loss.item()):
                raise ValueError("diverged")
            optimizer.step()
            optimizer.zero_grad()

    return train


def per_group(store: TokenStore, steps: int, m: int, kind: str, batch: int = BATCH) -> Callable[[], None]:
    """DoGE with a backward pass for each group, or DoReMi with a forward pass of the reference for each."""
    model, reference = new_model(), new_model().requires_grad_(False)
    optimizer = adamw(model, 1e-3, (0.9, 0.95), 1e-8, 0.1)
    sampler, val = MixtureSampler(store, batch), MixtureSampler(store, batch // 2, split="val")
    parameters = list(model.parameters())
    p = torch.full((m,), 1.0 / m)

    def gradient(ids: torch.Tensor) -> torch.Tensor:
        loss = model(input_ids=ids, labels=ids).loss
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])

    def train() -> None:
        for _ in range(steps):
            drawn = sampler.next(np.full(m, 1.0 / m))
            ids, group = torch.from_numpy(drawn.ids), torch.from_numpy(drawn.group)
            present = [j for j in range(m) if bool((group == j).any())]
            if kind == "doge":  # the groups' gradients serve the step, too
                direction = gradient(torch.from_numpy(val.next(np.full(m, 1.0 / m)).ids))
                total = torch.zeros_like(direction)
                for j in present:
                    mine = gradient(ids[group == j])
                    torch.dot(mine, direction)
                    total += p[j] * mine
                for parameter, piece in zip(parameters, total.split([q.numel() for q in parameters]), strict=True):
                    parameter.grad = piece.view_as(parameter)
            else:
                losses = []
                for j in present:
                    mine = ids[group == j]
                    losses.append(p[j] * model(input_ids=mine, labels=mine).loss)
                    with torch.no_grad():
                        reference(input_ids=mine, labels=mine)
                torch.stack(losses).sum().backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return train


def static(store: TokenStore, steps: int, batch: int = BATCH) -> Callable[[], None]:
    """The engine under a fixed mixture."""
    m = len(store.groups)
    engine = Engine(
        new_model(), MixtureSampler(store, batch), subset(store, store.groups, "val", 1, 0, 64), settings(10**6)
    )
    return lambda: engine.advance(Segment(np.full(m, 1.0 / m), steps)) and None


def online(
    store: TokenStore, steps: int, total: int, name: str, batch: int = BATCH, **chosen: object
) -> Callable[[], None]:
    """The engine under a method, observations and all; each call trains `steps` more of its `total` steps."""
    policy = aioli.create(name, **chosen).policy(groups=list(store.groups), steps=total)
    m = len(store.groups)
    each = budget(max(1, looks(policy)), total, batch * CONTEXT, CONTEXT, m)
    first = policy.ask()
    share = 0.5 if first is None or first.val_share is None else first.val_share
    engine = Engine(
        new_model(),
        MixtureSampler(store, batch),
        subset(store, store.groups, "val", each, 0, 64),
        settings(total),
        reference=new_model() if "excess_loss" in policy.needs else None,
        val_sampler=MixtureSampler(store, max(1, round(share * batch)), split="val"),
    )

    def train() -> None:
        goal = engine.step + steps
        while engine.step < goal and (segment := policy.ask()) is not None:
            policy.tell(engine.advance(segment))

    return train


def measure(contenders: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every contender in every round; they take turns in random order, as each warms the caches it uses."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(contenders), len(contenders)):
            began = time.perf_counter()
            contenders[name]()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(seconds: dict[str, list[float]], a: str, b: str) -> float:
    """The median over rounds of a's time over b's; the first round warms up."""
    return statistics.median(x / y for x, y in zip(seconds[a][1:], seconds[b][1:], strict=True))


def resume_seconds(store: TokenStore, folder: Path) -> float:
    """From a run that was stopped to its next step, in a process that has torch loaded."""
    recipe = TrainRecipe.model_validate({"data": str(store.path), "method": "stratified", "train": {"steps": 50}})

    def stop(run: Run) -> None:
        if run.engine.step == 20:
            run.stop.set()

    with contextlib.suppress(StoppedError):
        Run(recipe, folder / "run", stop).train()
    ends: list[float] = []
    began = time.perf_counter()
    Run(recipe, folder / "run", lambda run: ends.append(time.perf_counter())).train()
    return ends[0] - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total", type=int, default=2000, help="steps of the whole runs")
    parser.add_argument("--rounds", type=int, default=12, help="rounds in which proxies take turns")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--out", help="write the JSON here too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()  # for all of them, as the engine does when it is built
    steps, rounds = STEPS, options.rounds
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        two, three, eight, many = (make_store(folder, m) for m in (2, 3, 8, 32))
        seconds = measure(
            {"bare": bare(three, steps), "again": bare(three, steps), "static": static(three, steps)},
            options.total // (2 * steps),
        )
        round_steps = options.total // 20  # a round of Aioli, so that every turn holds the same looks
        whole = measure(
            {"bare": bare(three, round_steps), "aioli": online(three, round_steps, options.total, "aioli")}, 20
        )
        proxies = measure(
            {
                "plain": bare(two, steps, 32),
                "doremi m=2": online(two, steps, 10**4, "doremi", 32, proxy=True),
                "doremi m=32": online(many, steps, 10**4, "doremi", 32, proxy=True),
                "doremi per group m=32": per_group(many, steps, 32, "doremi", 32),
                "doge m=2 r=0.25": online(two, steps, 10**4, "doge", 32, proxy=True),
                "doge m=2": online(two, steps, 10**4, "doge", 32, r=0.5, proxy=True),
                "doge m=32": online(many, steps, 10**4, "doge", 32, r=0.5, proxy=True),
                "doge per group m=2": per_group(two, steps, 2, "doge", 32),
                "doge per group m=8": per_group(eight, steps, 8, "doge", 32),
                "doge m=8": online(eight, steps, 10**4, "doge", 32, r=0.5, proxy=True),
                "doge per group m=32": per_group(many, steps, 32, "doge", 32),
            },
            rounds,
        )
        found = {
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "steps": {"static": options.total // 2, "aioli": options.total, "proxies": steps * rounds},
            "speed of the bare loop against itself": 1 / ratio(seconds, "again", "bare"),
            "speed under static, of the bare loop": 1 / ratio(seconds, "static", "bare"),
            "speed under aioli, of the bare loop": 1 / ratio(whole, "aioli", "bare"),
            **{f"{name}: a step, in plain steps": ratio(proxies, name, "plain") for name in proxies if name != "plain"},
            "doge m=32 over m=2": ratio(proxies, "doge m=32", "doge m=2"),
            "doge per group m=32 over m=2": ratio(proxies, "doge per group m=32", "doge per group m=2"),
            "resume_seconds": resume_seconds(three, folder),
        }
    text = json.dumps({key: round(v, 4) if isinstance(v, float) else v for key, v in found.items()}, indent=1)
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
