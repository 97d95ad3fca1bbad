"""Many groups, long journals, many runs, many writers: what they take, and whether the bounds hold.

python benchmarks/load.py -o results/load.json      a list of {"what", "figure", "bound", "unit", "holds"}
python benchmarks/load.py --small                   a hundredth of it, in a few seconds
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import aioli
from aioli.data import MixtureSampler, TokenStore
from aioli.files import read_json, sealed
from aioli.runs.store import RunStore
from aioli.train.journal import Journal

GROUPS = ["a", "b", "c"]


def journal(folder, segments, groups=GROUPS):
    """A journal as a long run writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    m = len(groups)
    about = {"kind": "run", "groups": groups, "targets": groups, "steps": segments, "batch": 4, "context": 16}
    about |= {"method": "aioli", "model": "tiny", "parameters": 1, "data": "0", "seed": 0, "aioli": "0"}
    seconds = {"train": 1.0, "probe": 0.1, "probe_share": 0.1}
    out = Journal(folder / "journal.jsonl")
    out.append(about)
    for k in range(segments):
        p = [1 / m] * m
        line = {"kind": "segment", "begin": k, "end": k + 1, "tag": "train", "proportions": p, "report": {"p": p}}
        line |= {"values": {"val_loss": [3 - k / segments] * m}, "seconds": seconds}
        out.append(line)
    out.close()


def command(*words):
    """Seconds, and the peak of resident memory in MB, of a command in a process of its own."""
    code = (
        "import resource, sys, time; from aioli.cli import main; began = time.perf_counter(); "
        "code = main(sys.argv[1:]); "
        "print('\\n', time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024); "
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, peak = done.stdout.split()[-2:]
    return float(seconds), float(peak)


def finished(store, count):
    """A store with so many finished runs, their files as large as those of real ones, and sealed."""
    shares = dict.fromkeys(GROUPS, 1 / 3)
    verdict = {"loss": dict.fromkeys(GROUPS, 1.0), "mean_loss": 1.0, "tokens": 10**6, "curve": [[1.0] * 3] * 30}
    result = {"val": verdict, "mean_proportions": shares, "realised": shares, "targets": GROUPS, "groups": GROUPS}
    result |= {"steps": 30, "seconds": {"train": 1.0, "probe": 0.1, "evaluation": 0.1}}
    about = {"kind": "static", "steps": 30, "model": "tiny", "data": "store", "groups": GROUPS, "targets": GROUPS}
    content = {f"setting {k}": {"of": "a recipe", "value": k / 7} for k in range(60)}
    for k in range(count):
        key = f"{k * 7919 % 256:02x}{k:030x}"
        (store.run_folder(key)).mkdir(parents=True)
        told = {**about, "seed": k, "proportions": list(shares.values())}
        job = {"schema": 1, "key": key, "about": told, "content": content}
        (store.folder(key) / "job.json").write_text(json.dumps(sealed(job), indent=1))
        (store.run_folder(key) / "result.json").write_text(json.dumps(sealed(result), indent=1))


WRITER = """
import sys, time
from aioli.files import read_json, write_json
from aioli.runs.claim import Claim
from aioli.runs.store import RunStore
store, mine, count = RunStore(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
together = store.folder("ff" + "0" * 30)
for k in range(count):
    folder = store.folder(f"{mine:02x}{k:030x}")
    with Claim.make(folder):
        write_json(folder / "job.json", {"schema": 1, "about": {"kind": "static", "seed": mine}})
    while (claim := Claim.make(together)) is None:
        time.sleep(0.005)
    with claim:  # read, add, write: what another does meanwhile would be lost
        tally = read_json(together / "tally.json") or {"count": 0}
        write_json(together / "tally.json", {"count": tally["count"] + 1})
"""


def writers(place, count, each):
    """What is lost when so many processes write into one store: runs of their own, or turns at one that all want."""
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(place), str(k), str(each)]) for k in range(count)]
    bad = sum(process.wait() != 0 for process in processes)
    store, lost = RunStore(place, make=False), 0
    for mine in range(count):
        for k in range(each):
            job = read_json(store.folder(f"{mine:02x}{k:030x}") / "job.json")
            lost += job != {"schema": 1, "about": {"kind": "static", "seed": mine}}
    turns = (read_json(store.folder("ff" + "0" * 30) / "tally.json") or {"count": 0})["count"]
    left = [file for file in store.path.rglob(".*") if file.is_file()]
    return lost + count * each - turns + bad + len(left)


def corpus(place, m, documents=6):
    """A recipe for so many groups, in one file of records."""
    rng = np.random.default_rng(0)
    with (place / "corpus.jsonl").open("w") as out:
        for k in range(m * documents):
            words = " ".join(f"{word:x}" for word in rng.integers(0, 5000, 200))
            out.write(json.dumps({"text": words, "group": f"group {k % m}"}) + "\n")
    recipe = {"sources": [{"files": str(place / "corpus.jsonl"), "group_field": "group"}], "context": 32}
    recipe |= {"tokenizer": {"train": {"vocab_size": 512}}, "splits": {"val": 1, "test": 1}}
    (place / "recipe.yaml").write_text(json.dumps(recipe))
    return place / "recipe.yaml"


def drawing(place, batches, batch):
    """Seconds for so many batches of all groups, under mixtures that change."""
    sampler, rng = MixtureSampler(TokenStore(place), batch), np.random.default_rng(0)
    began = time.perf_counter()
    for _ in range(4):
        p = rng.dirichlet(np.ones(sampler.m))
        for _ in range(batches // 4):
            sampler.next(p)
    return time.perf_counter() - began


def policies(m, steps):
    """Seconds of a whole run of each method that runs online, with m groups, apart from the training."""
    from aioli.protocol import Observation, drive

    class Loop:
        supports, weightings = frozenset({"val_loss", "train_loss", "lr"}), frozenset({"sample", "loss"})

        def advance(self, segment):
            values = {"val_loss": np.linspace(2, 3, m), "train_loss": np.linspace(2, 3, m), "lr": 0.1}
            told = {kind: values[kind] for kind in segment.observe}
            return Observation(tokens=segment.proportions * 1000 * segment.steps, **told)

    found = {}
    for name, settings in (("stratified", {}), ("aioli", {"k": 1, "rounds": 1}), ("odm", {}), ("ado", {})):
        began = time.perf_counter()
        drive(aioli.create(name, **settings).policy(groups=m, steps=steps), Loop())
        found[name] = time.perf_counter() - began
    return found


def measure(small):
    """All rows."""
    scale = 100 if small else 1
    rows = []

    def row(what, figure, bound, unit):
        rows.append({"what": what, "figure": round(figure, 4), "bound": bound, "unit": unit, "holds": figure <= bound})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        count = 1_000_000 // scale
        journal(place / "short", count // 10)
        journal(place / "long", count)
        for words in (("watch", "--once"), ("report", "-o", place / "page.html")):
            _, less = command(words[0], place / "short", *words[1:])
            seconds, peak = command(words[0], place / "long", *words[1:])
            row(f"{words[0]}: a journal of {count:,} segments, peak memory", peak, 500, "MB")
            row(f"{words[0]}: peak memory, {count:,} segments to a tenth of them", peak / less, 1.2, "ratio")
            row(f"{words[0]}: a journal of {count:,} segments", seconds, 300, "s")
        m = 1000 // (10 if small else 1)
        journal(place / "wide", 200, [f"group {k}" for k in range(m)])
        for words in (("watch", "--once"), ("report", "-o", place / "page.html"), ("export", "--to", "json")):
            seconds, peak = command(words[0], place / "wide", *words[1:])
            row(f"{words[0]}: a run of {m:,} groups, peak memory", peak, 700, "MB")
            row(f"{words[0]}: a run of {m:,} groups", seconds, 60, "s")
        store = RunStore(place / "runs")
        finished(store, 1000 // scale * 1)
        command("runs", "--store", store.path)
        row(f"{1000 // scale:,} finished runs listed", command("runs", "--store", store.path)[0], 2, "s")
        RunStore(place / "many")
        each = 20 // (10 if small else 1)
        row(
            f"lost by 32 writers, {32 * each} runs and as many turns at one of them",
            writers(place / "many", 32, each),
            0,
            "",
        )
        seconds, peak = command("prepare", corpus(place, m), "-o", place / "store")
        row(f"prepare: {m:,} groups", seconds, 300, "s")
        row(f"prepare: {m:,} groups, peak memory", peak, 2000, "MB")
        row(f"sampler: 1,000 batches of 64 sequences of {m:,} groups", drawing(place / "store", 1000, 64), 60, "s")
        for method, seconds in policies(m, 4 * m).items():
            row(f"{method}: {m:,} groups, a run of {4 * m:,} steps, all that is not training", seconds, 300, "s")
        seconds, peak = command(
            "simulate", "--groups", m, "--steps", 4 * m, "--methods", "stratified", "odm", "--seeds", 1
        )
        row(f"simulate: {m:,} groups, {4 * m:,} steps", seconds, 600, "s")
        row(f"simulate: {m:,} groups, peak memory", peak, 4000, "MB")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = measure(options.small)
    text = json.dumps(rows, indent=1) + "\n"
    if options.out:
        Path(options.out).write_text(text)
    print(text, end="")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
