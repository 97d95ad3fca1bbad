"""How clearly forks tell two groups apart, by when they leave and how long their learning rate falls. JSON.

    python benchmarks/forks.py STORE [--groups arxiv stackexchange commoncrawl] [--target github] [-o FILE.json]

Models of the small profile are trained on even shares, and forks are tried out from them as `aioli-fork` does: three
quarters of one group, a quarter even shares, twice with other data. Told is the lead of the second group over the
first, in the target's validation loss: its mean, its deviation, which is what a lead has to stand out of, and how much
of that deviation is there between forks from the same weights: which sequences they happened to see.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

import aioli
from aioli.data import MixtureSampler, TokenStore
from aioli.experiments.profiles import SMALL
from aioli.protocol import Segment
from aioli.simplex import smoothed_one_hot, uniform
from aioli.train.engine import Engine, Settings
from aioli.train.models import build_model
from aioli.train.optimizer import Schedule
from aioli.train.validation import subset

LENGTH, COOLINGS, BEGIN, TWICE = 66, (1.0, 0.5, 0.25), (100, 200, 300), 2
STEPS, BATCH, RATE = 1000, 8, 3e-3
SEQUENCES = 166  # what the small profile's budget allows aioli-fork


def leads(store: TokenStore, groups: list[str], target: str, seed: int) -> dict[str, list[float]]:
    """By begin and cooling of forks: by how much the target loses less after the second group than after the first."""
    m = len(groups)
    model = build_model(
        SMALL["preset"], None, vocabulary=store.vocabulary, context=store.context, seed=seed, overrides=SMALL["config"]
    )
    sampler = MixtureSampler(store, BATCH, seed, groups=groups)
    validation = subset(store, [target], "val", SEQUENCES, seed, 250)
    engine = Engine(model, sampler, validation, Settings(Schedule(RATE, STEPS, STEPS // 20, 0.1)))
    found: dict[str, list[float]] = {}
    for begin in BEGIN:
        engine.advance(Segment(uniform(m), begin - engine.step))
        for again in range(TWICE):
            engine.sampler = sampler if not again else MixtureSampler(store, BATCH, seed + 10_000, groups=groups)
            for cooling in COOLINGS:
                forks = {"forks": smoothed_one_hot(m, 0.25)[:2], "fork_steps": LENGTH, "fork_cooling": cooling}
                after = engine.advance(Segment(uniform(m), 0, frozenset({"fork_loss"}), **forks)).fork_loss
                found.setdefault(f"from step {begin}, cooling {cooling:g}", []).append(float(after[0, 0] - after[1, 0]))
        engine.sampler = sampler
    return found


def told(every: list[list[float]]) -> dict[str, float | int]:
    """Of leads, (seeds, times)."""
    values = np.array(every)
    return {
        "lead": round(float(values.mean()), 4),
        "deviation": round(float(np.sqrt(values.var(0, ddof=1).mean())), 4),
        "deviation from the same weights": round(float(np.sqrt(values.var(1, ddof=1).mean())), 4),
        "wrong": int((values < 0).sum()),
        "of": values.size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--groups", nargs="+", default=["arxiv", "stackexchange", "commoncrawl"])
    parser.add_argument("--target", default="github")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds must be at least 2")
    torch.set_num_threads(1)
    store = TokenStore(options.store)
    seeds = range(500, 500 + options.seeds)  # that no table has
    every = [leads(store, options.groups, options.target, seed) for seed in seeds]
    plain = {
        "benchmark": "forks",
        "aioli": aioli.__version__,
        "data": store.fingerprint[:12],
        "setting": f"{'/'.join(options.groups)} → {options.target}",
        "lead": f"of {options.groups[1]} over {options.groups[0]}",
        "steps of a fork": LENGTH,
        "seeds": len(every),
        "forks": {name: told([each[name] for each in every]) for name in every[0]},
    }
    text = json.dumps(plain, indent=1, ensure_ascii=False)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
