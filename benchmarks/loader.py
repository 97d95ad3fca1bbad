"""Speed of the mixture sampler against a bare NumPy gather on the same memory map: python benchmarks/loader.py

Both deliver int64 batches of 16 sequences from three groups; ratios are medians of interleaved runs in one process.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from aioli.data import MixtureSampler, write_store

BATCH, BATCHES, REPEATS, TOKENS = 16, 1024, 7, 10_000_000


def seconds(action):
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) / BATCHES


def measure(context, place):
    rng = np.random.default_rng(0)
    tokens = {g: rng.integers(0, 50_000, TOKENS, dtype=np.uint16) for g in ("a", "b", "c")}
    store = write_store(place / str(context), {"train": tokens}, context, 50_000)
    sampler, p = MixtureSampler(store, BATCH), np.array([0.5, 0.3, 0.2])
    rows = store.rows("a")
    index = rng.integers(0, len(rows), (BATCHES, BATCH))

    def ours():
        for _ in range(BATCHES):
            sampler.next(p)

    def bare():
        for chosen in index:
            rows[chosen].astype(np.int64)

    pairs = [(seconds(ours), seconds(bare)) for _ in range(REPEATS)]
    return {
        "us_per_batch": 1e6 * statistics.median(a for a, _ in pairs),
        "us_bare_gather": 1e6 * statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
    }


def main():
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps({f"context {c}": measure(c, Path(place)) for c in (64, 2048)}, indent=2))


if __name__ == "__main__":
    main()
