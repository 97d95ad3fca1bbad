"""Texts as vectors of length 1: what words they use (TF-IDF, reduced by LSA), or a model's embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from aioli.simplex import Array

WORDS, DIMENSIONS = 20_000, 50
"""Of the vocabulary, and of the space that it is reduced to."""
PATTERN = r"(?u)\b[^\W\d_]{2,}\b|[{}();=<>\\$/_*#]{1,2}"
"""Words, and the signs by which program text and formulas are known."""
BATCH = 512


class Space(Protocol):
    """Where documents are compared."""

    def of(self, texts: Sequence[str]) -> Array:
        """Texts as rows of length 1 (or 0, for those that say nothing known)."""


class Vocabulary:
    """TF-IDF of a sample: which words there are, and how rare each is."""

    def __init__(self, texts: Sequence[str]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        least = 3 if len(texts) >= 200 else 1
        self.tfidf = TfidfVectorizer(
            token_pattern=PATTERN, max_features=WORDS, min_df=least, max_df=0.9, sublinear_tf=True, dtype=np.float64
        )
        try:
            self.X: Any = self.tfidf.fit_transform(texts)
        except ValueError:  # no word is in more than one and not in nearly all of them
            raise ValueError(
                "the documents have no words that tell them apart; give more of them, or --embeddings with a model"
            ) from None
        self.words: list[str] = [str(word) for word in self.tfidf.get_feature_names_out()]


class WordSpace:
    """The words of a text, reduced to a few dimensions in which words that occur together are alike (LSA)."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        from sklearn.decomposition import TruncatedSVD

        self.tfidf = vocabulary.tfidf
        n, m = vocabulary.X.shape
        self.svd = TruncatedSVD(DIMENSIONS, random_state=seed) if min(n, m) > 2 * DIMENSIONS else None
        if self.svd is not None:
            self.svd.fit(vocabulary.X)

    def of(self, texts: Sequence[str]) -> Array:
        """Texts as rows."""
        X = self.tfidf.transform(texts)
        return unit(X.toarray() if self.svd is None else self.svd.transform(X))


class ModelSpace:
    """Embeddings of a model in a folder of the user's; nothing is downloaded."""

    def __init__(self, folder: str) -> None:
        if not (Path(folder) / "config.json").is_file() and not (Path(folder) / "modules.json").is_file():
            raise ValueError(
                f"--embeddings {folder} is not the folder of a model (no config.json); download one there first"
            )
        try:
            from sentence_transformers import SentenceTransformer
            from transformers.utils import logging as transformers_logging
        except ImportError:
            raise ValueError("--embeddings needs sentence-transformers: pip install 'aioli-mix[embeddings]'") from None
        logging: Any = transformers_logging
        logging.disable_progress_bar()  # it would run through ours
        try:
            self.model: Any = SentenceTransformer(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # whatever a damaged or unknown model raises
            raise ValueError(f"--embeddings {folder} cannot be loaded: {str(error).splitlines()[0]}") from None

    def of(self, texts: Sequence[str]) -> Array:
        """Texts as rows."""
        return unit(np.asarray(self.model.encode(list(texts), show_progress_bar=False), dtype=np.float64))


def unit(rows: Any) -> Array:
    """Rows of length 1; rows of zeros stay."""
    Z = np.asarray(rows, dtype=np.float64)
    size = np.linalg.norm(Z, axis=1, keepdims=True)
    return np.asarray(Z / np.where(size > 0, size, 1.0))


def batched(space: Space, texts: Sequence[str]) -> Array:
    """Many texts, some at a time."""
    return np.concatenate([space.of(texts[k : k + BATCH]) for k in range(0, len(texts), BATCH)])


def is_word(token: str) -> bool:
    """Whether a token can stand in a name."""
    return token[0].isalpha()
