"""What the reader of the docs has at hand, so small that every command shown there takes a moment: text, a token store,
runs, a run store, tables of finished runs, methods and tasks of their own."""

import gzip
import json
import re
import shutil
from pathlib import Path

import numpy as np
import yaml

from aioli.cli import main
from aioli.data import prepare

ROOT = Path(__file__).resolve().parent.parent
GROUPS = ("code", "books", "web", "medicine", "prose", "python", "headers", "stubs", "tests")
SLIMPAJAMA = ("ArXiv", "Book", "C4", "CommonCrawl", "Github", "StackExchange", "Wikipedia")
SMALL = ["train.steps=40", "train.batch=2", "train.threads=1", "val.final=2"]
"""Settings of a run that takes a moment."""


def build(place: Path) -> None:
    """Everything, in the directory where we are."""
    rng = np.random.default_rng(0)
    _text(place, rng)
    _tables(place, rng)
    train = {"data": {"store": "store", "groups": ["python", "headers"], "targets": ["prose"]}, "seed": 0}
    (place / "train.yaml").write_text(yaml.safe_dump(train))
    sources = [{"files": "corpus.jsonl.gz", "group_field": "meta.source"}]
    plain = {
        "sources": sources,
        "tokenizer": {"train": {"vocab_size": 300}},
        "context": 16,
        "splits": {"val": 5, "test": 5},
    }
    (place / "prepare.yaml").write_text(yaml.safe_dump(plain))
    (place / "my_methods.py").write_text(blocks("your-own-method.md", "python")[0])
    (place / "my-tasks").mkdir()
    (place / "my-tasks" / "small_sums.yaml").write_text(blocks("evaluation.md", "yaml")[0])
    (place / "my-tasks" / "small_sums.jsonl").write_text(blocks("evaluation.md", "json")[0])
    shutil.copytree(ROOT / "results" / "mini", place / "aioli-results" / "mini")
    _runs(place)


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def _text(place: Path, rng: np.random.Generator) -> None:
    """Documents of a few kinds, each with words of its own, and the store made of them."""

    def document(kind: str) -> str:
        return " ".join(f"{kind.lower()}{'abcdefghijkl'[word]}" for word in rng.integers(0, 12, 40)) + "\n"

    def packed(path: Path, records: list[dict[str, object]]) -> None:
        path.parent.mkdir(exist_ok=True)
        lines = "".join(json.dumps(record) + "\n" for record in records)
        path.write_bytes(gzip.compress(lines.encode()))

    heap = [{"text": document(g), "content": document(g), "meta": {"source": g}} for g in GROUPS for _ in range(30)]
    packed(place / "corpus.jsonl.gz", [heap[k] for k in rng.permutation(len(heap))])
    (place / "corpus.jsonl").write_bytes(gzip.decompress((place / "corpus.jsonl.gz").read_bytes()))
    shutil.copy(place / "corpus.jsonl", place / "heap.jsonl")
    for name in SLIMPAJAMA:
        records = [{"text": document(name), "meta": {"redpajama_set_name": f"RedPajama{name}"}} for _ in range(200)]
        packed(place / "corpus" / f"{name.lower()}.jsonl.gz", records)
    for name in ("sums", "names", "colours"):
        records = [{"definition": "answer", "input": document(name), "output": str(k)} for k in range(400)]
        packed(place / "tasks" / f"{name}.jsonl.gz", records)
    for name in ("code", "books"):
        (place / "data" / name).mkdir(parents=True)
        for k in range(30):
            (place / "data" / name / f"{k}.txt").write_text(document(name))
    sources = [{"files": str(place / "corpus.jsonl"), "group_field": "meta.source"}]
    recipe = {
        "sources": sources,
        "tokenizer": {"train": {"vocab_size": 300}},
        "context": 16,
        "splits": {"val": 4, "test": 4},
    }
    prepare(recipe, place / "store")


def _tables(place: Path, rng: np.random.Generator) -> None:
    """Finished runs as tables, in the forms that `aioli fit` is shown to read."""
    groups, targets = ("code", "books", "wiki"), ("code", "medicine", "law")
    P = rng.dirichlet(np.ones(3), 24).round(6)
    A = rng.uniform(0.2, 2.0, (3, 3))
    L = 2.0 + np.exp(-P @ A.T) + 0.002 * rng.normal(size=(24, 3))

    def write(name: str, columns: dict[str, object]) -> None:
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(str(cell) for cell in row) for row in rows)]
        (place / name).write_text("\n".join(lines) + "\n")

    index = {"index": range(24)}
    shares = {g: P[:, j] for j, g in enumerate(groups)}
    losses = {t: L[:, i] for i, t in enumerate(targets)}
    prefixed = {f"p_{g}": column for g, column in shares.items()}
    write("runs.csv", prefixed | {f"loss_{t}": column for t, column in losses.items()})
    write("others.csv", prefixed)
    write("mixtures.csv", index | {f"train_{g}": column for g, column in shares.items()})
    write("losses.csv", index | {f"metric/{t}_loss": column for t, column in losses.items()})
    for name in ("train", "test"):
        write(f"{name}_mixture_1m.csv", index | {f"train_the_pile_{g}": column for g, column in shares.items()})
        pile = {f"metric/the_pile_{t}_val_loss": column for t, column in losses.items()}
        write(f"{name}_pile_loss_1m.csv", index | pile)
    two = np.linspace(0.1, 0.9, 12)
    write(
        "long.csv",
        {
            "p1": np.repeat(two, 2),
            "p2": np.repeat(1 - two, 2).round(6),
            "domain": ["a", "b"] * 12,
            "step": [30000] * 24,
            "loss": (2 + np.exp(-np.c_[2 * two, 1 - two])).ravel(),
        },
    )
    (place / "tokens.yaml").write_text(yaml.safe_dump({"code": 40e9, "books": 20e9, "wiki": 30e9}))


def _runs(place: Path) -> None:
    """A run, copies of it under the names that the docs use, a run store, a fit and a solution."""
    assert main(["train", "data=store", "data.groups=[code, books]", "-o", "run", "--quiet", *SMALL]) == 0
    assert main(["train", "data=store", "method=stratified", "-o", "ref", "--quiet", *SMALL]) == 0
    for name in ("run-a", "run-b", "run2", "stratified", "aioli"):
        shutil.copytree("run", name)
    shutil.copytree("run/model", "DIR")
    sweep = [
        "mix",
        "data=store",
        "data.groups=[code, books]",
        "--method",
        "dml:runs=3",
        "--quiet",
        "-o",
        "mixture.json",
    ]
    assert main([*sweep, *SMALL]) == 0
    assert main(["fit", "runs.csv", "--proportions", "p_*", "--losses", "loss_*", "-o", "fit.json"]) == 0
    assert main(["solve", "fit.json", "--bootstrap", "10", "-o", "solution.json"]) == 0
