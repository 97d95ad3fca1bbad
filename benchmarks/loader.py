"""Speed, memory and state of the mixture sampler, next to its limit and its peers: python benchmarks/loader.py

All deliver int64 batches of 16 sequences, drawn from three groups by one mixture. The limit is a bare NumPy gather of
random rows from one memory map that is as large as the three groups together. Peers (see loaders/) are measured if they
are installed. Contenders take turns, each for a fixed piece of work; ours and the limit, which are close, alternate in
short slices. Times are medians over the rounds, ratios are medians of the ratios within a round.
"""

import argparse
import importlib.metadata
import itertools
import json
import multiprocessing
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from loaders import PEERS, Task, installed, seconds, serve, settled

from aioli.data import Indices, MixtureSampler, TokenStore, write_store

BATCH, TOKENS, CONTEXTS, MIXTURE = 16, 10_000_000, (64, 2048), (0.5, 0.3, 0.2)
ROUNDS, PIECE, SLICES = 7, 0.4, 10
"""Rounds, seconds of each contender in each of them, and the slices of that in which ours and the limit alternate."""
SIZES, DRAWN = (10**4, 10**6, 10**9), 2000
"""Sequences per group and batches, where memory is measured."""
PACKAGES = ("aioli-mix", "numpy", "torch", "pyarrow", *PEERS)


# ---------------------------------------------------------------------- speed


class Local:
    """A contender in this process: one form, an endless iterator of batches."""

    def __init__(self, batches):
        self.batches = batches
        self.each = {"": settled(batches)}
        self.times = {"": []}

    def run(self, form, count):
        return seconds(self.batches, count)


class Remote:
    """A peer in a process of its own, with one or more forms."""

    def __init__(self, name, task):
        context = multiprocessing.get_context("spawn")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=serve, args=(end, name, task))
        self.process.start()
        end.close()

    def warm(self):
        self.answer()
        self.pipe.send("warm")
        self.report = self.answer()
        self.each = self.report["each"]
        self.times = {form: [] for form in self.each}
        if not self.each:
            raise RuntimeError(str(self.report["failed"]))

    def run(self, form, count):
        self.pipe.send((form, count))
        return self.answer()

    def answer(self, patience=180):
        if not self.pipe.poll(patience):
            raise RuntimeError(f"no answer in {patience} s")
        try:
            answer = self.pipe.recv()
        except EOFError:
            raise RuntimeError("its process died") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def close(self):
        if self.process.is_alive():
            self.pipe.send(None)
            self.process.join(10)
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(5)


def ours(store):
    sampler, p = MixtureSampler(store, BATCH), np.array(MIXTURE)
    while True:
        yield sampler.next(p)


def bare(rows):
    index = np.random.default_rng(1).integers(0, len(rows), (1 << 16, BATCH))
    for chosen in itertools.cycle(index):
        yield rows[chosen].astype(np.int64)


def speed(context, place, names):
    """The result for one context."""
    task = write(context, place)
    remotes = {name: Remote(name, task) for name in names if installed(name)}
    skipped = {name: "not installed" for name in names if name not in remotes}
    try:
        for name in list(remotes):
            attempt(remotes, skipped, name, Remote.warm)
        rows = task.one_map()
        local = {"ours": Local(ours(TokenStore(task.store))), "bare_gather": Local(bare(rows))}
        for _ in range(ROUNDS):
            alternate(local.values())
            for name in list(remotes):
                attempt(remotes, skipped, name, take_turn)
        return summary(local, remotes, skipped)
    finally:
        for remote in remotes.values():
            remote.close()


def write(context, place):
    """The same tokens as a store of three groups and as one map."""
    rng = np.random.default_rng(0)
    tokens = {g: rng.integers(0, 50_000, TOKENS, dtype=np.uint16) for g in ("a", "b", "c")}
    store = write_store(place / "store", {"train": tokens}, context, 50_000)
    task = Task(place, place / "store", place / "everything", BATCH, MIXTURE)
    np.concatenate([store.rows(g) for g in tokens]).tofile(task.everything)
    return task


def attempt(remotes, skipped, name, action):
    """A peer that fails is left out, with the reason."""
    try:
        action(remotes[name])
    except RuntimeError as error:
        skipped[name] = str(error)
        remotes.pop(name).close()


def take_turn(contender):
    for form in contender.each:
        contender.times[form].append(timed(contender, form, PIECE))


def alternate(contenders):
    slices = [[timed(contender, "", PIECE / SLICES) for contender in contenders] for _ in range(SLICES)]
    for contender, found in zip(contenders, zip(*slices, strict=True), strict=True):
        contender.times[""].append(statistics.median(found))


def timed(contender, form, wanted):
    """Seconds per batch over a piece of work that was sized to take as long as wanted."""
    count = max(1, round(wanted / contender.each[form]))
    return contender.run(form, count) / count


def summary(local, remotes, skipped):
    times = {name: contender.times[""] for name, contender in local.items()}
    peers = {name: {"skipped": reason} for name, reason in skipped.items()}
    for name, remote in remotes.items():
        best = min(remote.times, key=lambda form: statistics.median(remote.times[form]))
        times[name] = remote.times[best]
        forms = {form: rounded(1e6 * statistics.median(found)) for form, found in remote.times.items()}
        peers[name] = {"form": best, **rate(times[name]), "realised": remote.report["realised"][best], "forms": forms}
        peers[name] |= {key: remote.report[key] for key in ("failed", "notes") if remote.report[key]}
    return {
        **{name: rate(times[name]) for name in local},
        "peers": peers,
        "ratio_to_bare": {name: ratio(times["bare_gather"], found) for name, found in times.items()},
        "ours_over_peer": {name: ratio(times[name], times["ours"]) for name in remotes},
    }


def rate(found):
    each = statistics.median(found)
    spread = [rounded(1e6 * min(found)), rounded(1e6 * max(found))]
    return {"us_per_batch": rounded(1e6 * each), "us_range": spread, "batches_per_second": rounded(1 / each)}


def ratio(above, below):
    return rounded(statistics.median(a / b for a, b in zip(above, below, strict=True)))


def rounded(x):
    return float(f"{x:.4g}")


# ---------------------------------------------------------------------- memory and state


def peak():
    """Peak resident memory of this process in bytes.

    Linux counts what a process was before `exec`, its parent's copy, into getrusage, but not into VmHWM.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def footprint(size):
    """In a fresh process: memory, time and state of a sampler over three groups of so many sequences."""
    p, before = np.array(MIXTURE), peak()
    sampler = MixtureSampler(Indices((size,) * 3), BATCH)
    began = time.perf_counter()
    for _ in range(DRAWN):
        sampler.next(p)
    each = (time.perf_counter() - began) / DRAWN
    growth, state = peak() - before, json.dumps(sampler.state_dict())
    loads = [resumed(size, state, p) for _ in range(51)]
    return {
        "peak_rss_growth_mb": rounded(growth / 1e6),
        "seconds_per_batch": rounded(each),
        "state_bytes": len(state),
        "load_us": rounded(1e6 * statistics.median(load for load, _ in loads)),
        "first_batch_after_load_us": rounded(1e6 * statistics.median(first for _, first in loads)),
    }


def resumed(size, state, p):
    """Seconds to load a state into a new sampler, and from then to its first batch."""
    sampler = MixtureSampler(Indices((size,) * 3), BATCH)
    began = time.perf_counter()
    sampler.load_state_dict(json.loads(state))
    loaded = time.perf_counter()
    sampler.next(p)
    return loaded - began, time.perf_counter() - loaded


def footprints():
    command = [sys.executable, __file__, "--footprint"]
    found = {n: subprocess.run([*command, str(n)], check=True, capture_output=True, text=True).stdout for n in SIZES}
    return {f"{n:.0e} sequences per group": json.loads(text) for n, text in found.items()}


# ---------------------------------------------------------------------- all of it


def versions():
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the result to this file too")
    parser.add_argument("--peers", nargs="+", choices=[*PEERS, "none"], default=list(PEERS))
    parser.add_argument("--footprint", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.footprint:
        return print(json.dumps(footprint(given.footprint)))
    began, names = time.perf_counter(), [name for name in given.peers if name != "none"]
    result = {"versions": versions(), "sampler": footprints()}
    for context in CONTEXTS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            result[f"context {context}"] = speed(context, Path(place), names)
    result["seconds"] = round(time.perf_counter() - began)
    text = json.dumps(result, indent=2)
    if given.out:
        given.out.write_text(text + "\n")
    return print(text)


if __name__ == "__main__":
    main()
