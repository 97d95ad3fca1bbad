"""How fast sweeps are: one worker, several workers, and stacked parameters, on tiny models. JSON, ratios of one run.

    python benchmarks/sweep.py [--runs 10] [--steps 200] [--rounds 3] [-o benchmarks/results/sweep.json]

Every way trains the same ten mixtures, in a store of its own; ways take turns, and ratios are taken within a turn.
`cold` includes the start of the workers, as a user waits for it; `warm` does not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import aioli
from aioli.data import write_store
from aioli.recipe import build
from aioli.runs import Job, LocalExecutor, RunStore, Setup
from aioli.simplex import dirichlet_cover
from aioli.train import TrainRecipe

VOCABULARY = 512
SIZES = (("tiny", 4, 16), ("tiny", 8, 32), ("tiny", 16, 64), ("tiny-128", 4, 16))
WAYS = {"one worker": (1, 1), "two workers": (2, 1), "two workers, stacks of 5": (2, 5)}


def setup_of(folder: Path, preset: str, batch: int, context: int, steps: int) -> Setup:
    place = folder / f"store-{context}"
    if not place.exists():
        rng = np.random.default_rng(0)
        splits = {
            split: {name: rng.integers(0, VOCABULARY, size) for name in ("a", "b", "c")}
            for split, size in (("train", 200_000), ("val", 4096), ("test", 4096))
        }
        write_store(place, splits, context, VOCABULARY)
    plain = {"data": str(place), "model": preset, "train": {"steps": steps, "batch": batch}}
    return Setup.of(build(TrainRecipe, plain))


def sweep(setup: Setup, runs: int, workers: int, stack: int) -> tuple[float, float]:
    """Seconds of a sweep with the start of the workers and without."""
    problem = setup.problem(0)
    jobs = [Job(problem.static(p, problem.steps), setup) for p in dirichlet_cover(3, runs, 1.0, 0)]
    first = [Job(problem.static(np.eye(3)[k % 3], 2, seed=k), setup) for k in range(workers)]
    with tempfile.TemporaryDirectory() as place:
        store, executor = RunStore(Path(place) / "runs"), LocalExecutor(workers, stack=stack)
        began = time.perf_counter()
        for job in (*first, *jobs):
            store.add(job)
        waiting = [executor.submit(job.order(store)) for job in first]
        assert [future.result() for future in waiting] == ["done"] * workers
        warm = time.perf_counter()
        waiting = [executor.submit(job.order(store)) for job in jobs]
        assert [future.result() for future in waiting] == ["done"] * runs
        end = time.perf_counter()
        executor.close()
    return end - began, end - warm


def measure(setup: Setup, runs: int, rounds: int) -> dict[str, object]:
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, (workers, stack) in WAYS.items():
            times[way].append(sweep(setup, runs, workers, stack))
    found: dict[str, object] = {}
    for way, taken in times.items():
        entry = {"runs_per_hour": round(3600 * runs / statistics.median(warm for _, warm in taken))}
        for k, name in enumerate(("cold", "warm")):
            ratios = [mine[k] / base[k] for mine, base in zip(taken, times["one worker"], strict=True)]
            entry[f"{name}_share_of_one_worker"] = round(statistics.median(ratios), 3)
        found[way] = entry
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for preset, batch, context in SIZES:
            setup = setup_of(Path(folder), preset, batch, context, options.steps)
            found[f"{preset}, batch {batch}, context {context}"] = measure(setup, options.runs, options.rounds)
    plain = {
        "benchmark": "sweep",
        "aioli": aioli.__version__,
        "cores": os.cpu_count(),
        "runs": options.runs,
        "steps": options.steps,
        "rounds": options.rounds,
        "goal": "two workers take at most 0.6 of the time of one",
        "sizes": found,
    }
    text = json.dumps(plain, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
