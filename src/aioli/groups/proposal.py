"""`propose`: groups of a corpus by one of three rules, what they are like, and a recipe that `prepare` accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aioli.data.reading import Input, Raw
from aioli.files import explained
from aioli.groups.clusters import Clusters, Labels, cluster
from aioli.groups.corpus import MOST, SEEN, Corpus, Progress, Survey, Tally, survey
from aioli.groups.describe import alike, apart, doubts, telling
from aioli.groups.shards import Shards, check_place, folder_of, safe_names, write_recipe
from aioli.groups.space import BATCH, ModelSpace, Space, Vocabulary, WordSpace, batched
from aioli.simplex import Array
from aioli.threads import one_thread

SAMPLE, OTHERS = 10_000, "others"


@dataclass(frozen=True)
class Group:
    """One group."""

    name: str
    documents: int
    characters: int
    share: float
    """Of all characters."""
    words: list[str]
    """That tell it from the others."""
    examples: list[str]
    """Beginnings of two documents."""
    separation: float | None
    """Mean silhouette of its documents in the sample."""


@dataclass(frozen=True)
class Proposal:
    """Groups, and how good they are."""

    by: str
    groups: list[Group]
    separation: float | None
    """Silhouette over the sample: 1 far apart, 0 overlapping."""
    stability: float | None
    """Of clusters: how far those of other halves of the documents agree with them."""
    sampled: int
    """Documents that words and distances are from."""
    warnings: list[str]
    notes: dict[str, int]
    recipe: dict[str, Any]
    out: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        plain = {**vars(self), "groups": [vars(group) for group in self.groups]}
        return plain | {"out": None if self.out is None else str(self.out)}


@dataclass(frozen=True)
class _Wanted:
    """What `propose` was asked for."""

    files: list[str]
    text_field: str
    k: int | None
    seed: int
    sample: int
    bad_records: Literal["error", "skip"]
    out: Path | None
    progress: Progress | None

    def source(self, **rule: Any) -> dict[str, Any]:
        """As it will stand in the recipe."""
        text = {} if self.text_field == "text" else {"text_field": self.text_field}
        return {"files": self.files, **text, **rule}

    def corpus(self, source: dict[str, Any]) -> Corpus:
        """The documents of a source."""
        return Corpus.of(source, self.bad_records, self.progress)


@one_thread()
def propose(
    files: Sequence[str | Path],
    by: Literal["cluster", "field", "source"],
    *,
    k: int | None = None,
    field: str | None = None,
    level: Literal["file", "folder"] | None = None,
    embeddings: str | None = None,
    text_field: str = "text",
    sample: int = SAMPLE,
    seed: int = 0,
    bad_records: Literal["error", "skip"] = "error",
    out: str | Path | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> Proposal:
    """Groups of the documents in files, globs or directories; with `out`, a recipe, and for clusters the files of each
    group in a folder beside it. The same files and seed give the same bytes."""
    _need_sklearn()
    if sample < 10:
        raise ValueError(f"--sample {sample} must be at least 10")
    place = None if out is None else Path(out)
    wanted = _Wanted([str(f) for f in files], text_field, k, seed, sample, bad_records, place, progress)
    if place is not None:
        check_place(place, replace, by == "cluster", wanted.corpus(wanted.source(group="all")).entries)
    with explained(place or Path(".")):
        if by == "cluster":
            return _by_cluster(wanted, embeddings)
        if by == "field":
            if field is None:
                raise ValueError("which field? aioli groups --by field without -o shows those that look like labels")
            return _by_rule(wanted, by, wanted.source(group_field=field), k)
        if k is not None:
            raise ValueError(f"-k {k} is for --by cluster and --by field; files are as many as they are")
        return _by_rule(wanted, by, wanted.source(group_by=level or _level(wanted)), None)


def _need_sklearn() -> None:
    if find_spec("sklearn") is None:
        raise ValueError("groups need scikit-learn: pip install 'aioli-mix[groups]'")


# ---------------------------------------------------------------------- by field, by source


def _level(wanted: _Wanted) -> Literal["file", "folder"]:
    """Folders where there are several, files otherwise."""
    entries = wanted.corpus(wanted.source(group="all")).entries
    folders = {entry.file.resolve().parent for entry in entries if entry.file is not None}
    return "folder" if len(folders) > 1 else "file"


def _by_rule(wanted: _Wanted, by: str, source: dict[str, Any], k: int | None) -> Proposal:
    """Groups that documents or files name themselves."""
    found = survey(wanted.corpus(source), wanted.sample, wanted.seed)
    if k is not None:
        source, found = _fewer(source, found, k)
    if len(found.tallies) > MOST:
        what = "keep the largest with -k 20" if by == "field" else "use --level folder, or --by cluster"
        raise ValueError(f"there are {len(found.tallies):,} groups by this rule, and {MOST} at most; {what}")
    if len(found.tallies) < 2:
        only = next(iter(found.tallies))
        raise ValueError(f"all documents are of one group, {only!r}; try another rule (--by cluster, field or source)")
    names = sorted(found.tallies)
    labels = np.array([names.index(group) for group in found.sample.groups])
    vocabulary = Vocabulary(found.sample.texts)
    Z = batched(WordSpace(vocabulary, wanted.seed), found.sample.texts)
    tallies = {name: found.tallies[name] for name in names}
    recipe = {"sources": [source]}
    if wanted.out is not None:
        recipe = write_recipe(wanted.out, source, wanted.bad_records)
    return _described(by, wanted, tallies, telling(vocabulary, labels, len(names)), labels, Z, found.notes, recipe)


def _fewer(source: dict[str, Any], found: Survey, k: int) -> tuple[dict[str, Any], Survey]:
    """The k - 1 groups with most text, and all others as one."""
    if k < 2:
        raise ValueError(f"-k {k}: there must be at least 2 groups")
    if len(found.tallies) <= k:
        return source, found
    order = sorted(found.tallies, key=lambda name: (-found.tallies[name].characters, name))
    if len(order) > 10 * MOST:
        raise ValueError(f"the field has {len(order):,} different values; it does not name groups")
    kept = set(order[: k - 1])
    rest = OTHERS if OTHERS not in kept else f"{OTHERS}-2"
    called = {name: name if name in kept else rest for name in order}
    tallies: dict[str, Tally] = {}
    for name in order:
        tally = found.tallies[name]
        into = tallies.setdefault(called[name], Tally())
        into.documents, into.characters = into.documents + tally.documents, into.characters + tally.characters
        into.examples = (into.examples + tally.examples)[:2]
    sample = replace(found.sample, groups=[called[group] for group in found.sample.groups])
    return {**source, "groups": called}, Survey(tallies, sample, found.notes)


# ---------------------------------------------------------------------- by cluster


def _by_cluster(wanted: _Wanted, embeddings: str | None) -> Proposal:
    """Groups of documents that use the same words, or that a model puts close together."""
    corpus = wanted.corpus(wanted.source(group="all"))
    model = None if embeddings is None else ModelSpace(embeddings)
    found = survey(corpus, wanted.sample, wanted.seed)
    texts = found.sample.texts
    if len(texts) < 2:
        raise ValueError("there is one document only; groups need several")
    vocabulary = Vocabulary(texts)
    space: Space = model or WordSpace(vocabulary, wanted.seed)
    Z = batched(space, texts)
    clusters = cluster(Z, wanted.k, wanted.seed)
    clusters, words = _ordered(clusters, vocabulary)
    names = safe_names(words)
    tallies = {name: Tally() for name in names}
    notes: Counter[str] = Counter()
    folder = None if wanted.out is None else folder_of(wanted.out)
    with nullcontext() if folder is None else Shards(folder, names, wanted.text_field) as shards:
        for group, entry, raw, text in _assigned(corpus, space, clusters, notes):
            tallies[names[group]].add(text)
            if shards is not None:
                shards.add(group, entry, raw, text)
    source = wanted.source(group_by="file") | {"files": str(folder or "FOLDER")}
    recipe = {"sources": [source]}
    if wanted.out is not None:
        recipe = write_recipe(wanted.out, source, wanted.bad_records)
    told = _described("cluster", wanted, tallies, words, clusters.labels, Z, notes, recipe)
    return replace(told, stability=clusters.stability)


def _ordered(clusters: Clusters, vocabulary: Vocabulary) -> tuple[Clusters, list[list[str]]]:
    """Clusters by size, the largest first, and the words of each."""
    sizes = np.bincount(clusters.labels, minlength=clusters.k)
    order = np.argsort(-sizes, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(clusters.k)
    sorted_ = replace(clusters, centres=clusters.centres[order], labels=place[clusters.labels])
    return sorted_, telling(vocabulary, sorted_.labels, clusters.k)


def _assigned(
    corpus: Corpus, space: Space, clusters: Clusters, notes: Counter[str]
) -> Iterator[tuple[int, Input, Raw, str]]:
    """All documents with the cluster that each is nearest to, some at a time."""
    waiting: list[tuple[Input, Raw, str]] = []

    def placed() -> Iterator[tuple[int, Input, Raw, str]]:
        near = clusters.nearest(space.of([text[:SEEN] for _, _, text in waiting]))
        yield from ((int(group), *each) for group, each in zip(near, waiting, strict=True))
        waiting.clear()

    for entry, raw, document in corpus.documents(notes, "assigned"):
        waiting.append((entry, raw, document.text))
        if len(waiting) >= BATCH:
            yield from placed()
    if waiting:
        yield from placed()


# ---------------------------------------------------------------------- what they are like


def _described(
    by: str,
    wanted: _Wanted,
    tallies: Mapping[str, Tally],
    words: Sequence[list[str]],
    labels: Labels,
    Z: Array,
    notes: Counter[str],
    recipe: dict[str, Any],
) -> Proposal:
    total = sum(tally.characters for tally in tallies.values())
    whole, each = apart(Z, labels, len(tallies), wanted.seed)
    groups = [
        Group(name, tally.documents, tally.characters, tally.characters / total, words[g], tally.examples, each[g])
        for g, (name, tally) in enumerate(tallies.items())
    ]
    doubtful = doubts(tallies, alike(Z, labels, list(tallies)))
    return Proposal(by, groups, whole, None, len(labels), doubtful, dict(sorted(notes.items())), recipe, wanted.out)
