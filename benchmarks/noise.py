"""How much of a loss drop over an interval is noise, by batch, learning rate and validation sequences. JSON.

    python benchmarks/noise.py STORE [--groups book commoncrawl stackexchange] [--target c4] [-o FILE.json]

A model of the small profile is trained on even shares; every 15 steps the target's validation loss is looked at, on
several random subsets of each size. Between a sixth and half of the run, where `aioli-pooled` sweeps, the drops from
look to look are told apart into a smooth trend and what is left: the noise that an estimate of A has to overcome.
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
from aioli.simplex import uniform
from aioli.train.engine import Engine, Settings
from aioli.train.models import build_model
from aioli.train.optimizer import Schedule
from aioli.train.validation import subset

INTERVAL, SUBSETS, SIZES = 15, 8, (12, 24, 60, 120, 240)
TRIED = ((8, 1.5e-3), (8, 3e-3), (8, 6e-3), (16, 3e-3))
STEPS = 1000


def drops(store: TokenStore, groups: list[str], target: str, batch: int, rate: float) -> dict[str, float]:
    """Mean drop over an interval, and for each size the standard deviation of what is not trend."""
    parts = {n: [subset(store, [target], "val", n, seed, 250) for seed in range(SUBSETS)] for n in SIZES}
    model = build_model(
        SMALL["preset"],
        None,
        vocabulary=store.vocabulary,
        context=store.context,
        seed=0,
        overrides=SMALL["config"],
    )
    schedule = Schedule(rate, STEPS, STEPS // 20, 0.1)
    sampler = MixtureSampler(store, batch, 0, groups=groups)
    engine = Engine(model, sampler, parts[SIZES[0]][0], Settings(schedule))
    seen: dict[int, list[list[float]]] = {n: [] for n in SIZES}
    while engine.step < STEPS // 2:
        engine.advance(Segment(uniform(len(groups)), INTERVAL))
        if engine.step >= STEPS // 6:
            for n, each in parts.items():
                seen[n].append([float(engine.val_losses(part)[0]) for part in each])
    found: dict[str, float] = {}
    for n, losses in seen.items():
        drop = -np.diff(np.array(losses), axis=0)
        clock = np.linspace(-1, 1, len(drop))
        smooth = np.polynomial.polynomial.polyvander(clock, 2)
        left = drop - smooth @ np.linalg.lstsq(smooth, drop, rcond=None)[0]
        found["mean drop"] = round(float(drop.mean()), 5)
        found[f"noise, {n} sequences"] = round(float(np.sqrt((left**2).sum() / (left.size - 3 * SUBSETS))), 5)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--groups", nargs="+", default=["book", "commoncrawl", "stackexchange"])
    parser.add_argument("--target", default="c4")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = TokenStore(options.store)
    plain = {
        "benchmark": "noise",
        "aioli": aioli.__version__,
        "data": store.fingerprint[:12],
        "setting": f"{'/'.join(options.groups)} → {options.target}",
        "interval": INTERVAL,
        "steps": STEPS,
        "tried": {
            f"batch {batch}, lr {rate:g}": drops(store, options.groups, options.target, batch, rate)
            for batch, rate in TRIED
        },
    }
    text = json.dumps(plain, indent=1, ensure_ascii=False)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
