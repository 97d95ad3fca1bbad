"""How clearly forks tell two groups apart, by their steps and by how long their learning rate falls. JSON.

    python benchmarks/forks.py STORE [--groups arxiv stackexchange commoncrawl] [--target github] [-o FILE.json]

Models of the small profile are trained on even shares for a tenth of a run, and forks are tried out as `aioli-fork`
does: three quarters of one group, a quarter even shares. Told is the lead of the second group over the first, in the
target's validation loss: its mean over seeds, and its deviation, which is what a lead has to stand out of.
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

LENGTHS, COOLINGS = (66, 150), (1.0, 0.5, 0.25)
STEPS, FIRST, SEQUENCES, BATCH, RATE = 1000, 100, 1000, 8, 3e-3


def leads(store: TokenStore, groups: list[str], target: str, seed: int, first: int = 100) -> dict[str, np.ndarray]:
    """By length and cooling of forks: by how much the target loses less after the second group than after the first."""
    m = len(groups)
    model = build_model(
        SMALL["preset"], None, vocabulary=store.vocabulary, context=store.context, seed=seed, overrides=SMALL["config"]
    )
    sampler = MixtureSampler(store, BATCH, seed, groups=groups)
    validation = subset(store, [target], "val", SEQUENCES, 0, 250)
    engine = Engine(model, sampler, validation, Settings(Schedule(RATE, STEPS, STEPS // 20, 0.1)))
    engine.advance(Segment(uniform(m), first))
    found, two = {}, smoothed_one_hot(m, 0.25)[:2]
    for steps in LENGTHS:
        for cooling in COOLINGS:
            look = Segment(uniform(m), 0, {"fork_loss"}, forks=two, fork_steps=steps, fork_cooling=cooling)
            after = engine.advance(look).fork_loss
            found[f"{steps} steps, cooling {cooling:g}"] = after[0] - after[1]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--groups", nargs="+", default=["arxiv", "stackexchange", "commoncrawl"])
    parser.add_argument("--target", default="github")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = TokenStore(options.store)
    seeds = range(500, 500 + options.seeds)  # that no table has
    every = [leads(store, options.groups, options.target, seed, FIRST) for seed in seeds]
    plain = {
        "benchmark": "forks",
        "aioli": aioli.__version__,
        "data": store.fingerprint[:12],
        "setting": f"{'/'.join(options.groups)} → {options.target}",
        "lead": f"of {options.groups[1]} over {options.groups[0]}",
        "from step": FIRST,
        "seeds": len(every),
        "forks": {
            name: {
                "lead": round(float(np.mean([each[name] for each in every])), 4),
                "deviation between seeds": round(float(np.std([each[name] for each in every], ddof=1)), 4),
                "seeds with the lead": sum(bool(each[name] > 0) for each in every),
            }
            for name in every[0]
        },
    }
    text = json.dumps(plain, indent=1, ensure_ascii=False)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
