"""What groups are like: the words that tell them apart, how far they are from each other, and what to beware of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from aioli.groups.clusters import Labels
from aioli.groups.corpus import Tally
from aioli.groups.space import Vocabulary, is_word
from aioli.simplex import Array

TELLING, LOOKED = 6, 2000
"""Words that are named, and documents that distances are looked at on."""
ALIKE, FEW, SMALL = 0.9, 20, 0.005
"""Cosine of the means of two groups that look alike; documents, and share of all text, of a group that is tiny."""


def telling(vocabulary: Vocabulary, labels: Labels, count: int) -> list[list[str]]:
    """For each group the words that it uses more than the others do, the most telling first."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    usable = np.array([is_word(word) and word not in ENGLISH_STOP_WORDS for word in vocabulary.words])
    whole = np.asarray(vocabulary.X.sum(0)).ravel()
    found: list[list[str]] = []
    for group in range(count):
        mine = labels == group
        if not mine.any():
            found.append([])
            continue
        inside = np.asarray(vocabulary.X[np.flatnonzero(mine)].sum(0)).ravel()
        outside = (whole - inside) / max(1, int((~mine).sum()))
        gain = np.where(usable, inside / mine.sum() - outside, -1.0)
        order = np.argsort(-gain, kind="stable")[:TELLING]
        found.append([vocabulary.words[w] for w in order if gain[w] > 0])
    return found


def apart(Z: Array, labels: Labels, count: int, seed: int) -> tuple[float | None, list[float | None]]:
    """The silhouette of all and of each group: 1 where groups are far apart, 0 where they overlap, below 0 where
    documents are closer to another group than to their own."""
    from sklearn.metrics import silhouette_samples

    some = np.random.default_rng(seed).permutation(len(Z))[:LOOKED]
    if not 2 <= len(set(labels[some].tolist())) < len(some):
        return None, [None] * count
    values = silhouette_samples(Z[some], labels[some], metric="cosine")
    each = [float(values[labels[some] == g].mean()) if (labels[some] == g).any() else None for g in range(count)]
    return float(values.mean()), each


def alike(Z: Array, labels: Labels, names: Sequence[str]) -> list[tuple[str, str, float]]:
    """Pairs of groups whose documents are, on average, of one kind."""
    means = {}
    for group, name in enumerate(names):
        if (labels == group).sum() >= 5:
            mean = Z[labels == group].mean(0)
            means[name] = mean / max(float(np.linalg.norm(mean)), 1e-12)
    pairs = ((a, b, float(means[a] @ means[b])) for a, b in combinations(means, 2))
    return sorted((pair for pair in pairs if pair[2] >= ALIKE), key=lambda pair: -pair[2])


def doubts(tallies: Mapping[str, Tally], close: Sequence[tuple[str, str, float]]) -> list[str]:
    """What speaks against groups."""
    total = sum(tally.characters for tally in tallies.values())
    tiny = [
        f"{name} ({tally.documents:,} documents, {tally.characters / total:.1%})"
        for name, tally in tallies.items()
        if tally.documents < FEW or tally.characters < SMALL * total
    ]
    found = []
    if tiny:
        more = f" and {len(tiny) - 5} more" if len(tiny) > 5 else ""
        found.append(f"tiny groups, too few documents to hold some out and measure a loss: {', '.join(tiny[:5])}{more}")
    found += [
        f"{a} and {b} look alike (similarity {cosine:.2f}): one group of both may do" for a, b, cosine in close[:5]
    ]
    return found
