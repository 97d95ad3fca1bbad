"""The log of tokens to a store: which document is in which split, none in two of them, packed, checksummed.

Splits follow from a hash of each document's content, so they stay as they are when data is added. A document that
occurs in two splits is removed from the later one. Plain text is packed end to end; the examples of instruction data
are never cut apart: they are packed whole, and what room is left is filled up.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioli.data.documents import BY_RULE, CODES
from aioli.data.log import DOCUMENT
from aioli.data.packing import pack
from aioli.data.recipe import DataRecipe, Splits
from aioli.data.store import SCHEMA, SPLITS, sha256_of
from aioli.data.tokenizer import Encoder

Documents = NDArray[Any]
Codes = NDArray[np.int64]
GONE = -1
_PIECE_TOKENS = 1 << 24


def assemble(recipe: DataRecipe, log: Path, groups: Sequence[str], encoder: Encoder, out: Path) -> dict[str, Any]:
    """Write the arrays of a store to `out` and return its manifest."""
    _none_empty(recipe, groups)
    order = sorted(range(len(groups)), key=lambda j: groups[j])
    documents = [np.fromfile(log / f"{j}.documents", dtype=DOCUMENT) for j in order]
    codes = [split_of(found, recipe.splits) for found in documents]
    ruled = [bool((found["split"] == BY_RULE).any()) for found in documents]
    before = [np.bincount(code, minlength=len(SPLITS)).tolist() for code in codes]
    notes: dict[str, int] = _absent(recipe, groups)
    removed = remove_repeated(documents, codes)
    if removed:
        notes["documents removed because an earlier split has them"] = removed
    out.mkdir()
    encoder.save(out / "tokenizer")
    kept = [name for s, name in enumerate(SPLITS) if any((c == s).any() for c in codes)]
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "context": recipe.context,
        "dtype": encoder.dtype,
        "vocabulary": encoder.vocabulary,
        "groups": [groups[j] for j in order],
        "splits": {name: {} for name in kept},
        "tokenizer": {
            "name": encoder.name,
            "eos": encoder.eos,
            "eos_token": encoder.eos_token,
            "fingerprint": encoder.fingerprint,
            "files": {path.name: sha256_of(path) for path in sorted((out / "tokenizer").iterdir())},
        },
        "notes": notes,
    }
    for place, j in enumerate(order):
        tokens = np.memmap(log / f"{j}.tokens", dtype=encoder.dtype, mode="r")
        for name in kept:
            group = _Part(groups[j], name, tokens, documents[place], codes[place] == SPLITS.index(name), encoder)
            manifest["splits"][name][groups[j]] = group.write(out, place, recipe.context, notes)
    _check_sizes(recipe, manifest, ruled, before)
    return manifest


def _none_empty(recipe: DataRecipe, groups: Sequence[str]) -> None:
    if not groups:
        raise ValueError("the sources hold no documents")
    empty = [s.group for s in recipe.sources if s.group is not None and s.group not in groups]
    if empty:
        raise ValueError(f"group {empty[0]!r} is empty: no document of the sources belongs to it")


def _absent(recipe: DataRecipe, groups: Sequence[str]) -> dict[str, int]:
    """A note for each name in `groups` that no document had."""
    named = {name for source in recipe.sources for name in source.groups.values()}
    return {f"documents of {name!r}, which the recipe names": 0 for name in sorted(named - set(groups))}


def split_of(documents: Documents, rule: Splits) -> Codes:
    """The split of each document of a group: as its source says, otherwise by the hash of its content."""
    codes: Codes = documents["split"].astype(np.int64)
    halved = np.flatnonzero(codes == CODES["val+test"])
    different = np.unique(documents["hash"][halved])
    first = np.isin(documents["hash"][halved], different[: len(different) - len(different) // 2])
    codes[halved] = np.where(first, CODES["val"], CODES["test"])
    free = np.flatnonzero(codes == BY_RULE)
    free = free[np.argsort(documents["hash"][free], kind="stable")]
    codes[free] = CODES["train"]
    place = documents["hash"][free] / 2.0**64
    shares = 0.0
    for name, amount in (("test", rule.test), ("val", rule.val)):  # shares first, then numbers of what is left
        if amount < 1:
            codes[free[(place >= shares) & (place < shares + amount)]] = CODES[name]
            shares += amount
    left = free[place >= shares]
    for name, amount in (("test", rule.test), ("val", rule.val)):
        if amount >= 1:  # so many different documents, with all their copies
            several = np.unique(documents["hash"][left])[: int(amount)]
            held = np.isin(documents["hash"][left], several)
            codes[left[held]] = CODES[name]
            left = left[~held]
    return codes


def remove_repeated(documents: Sequence[Documents], codes: Sequence[Codes]) -> int:
    """Take documents out of a split that an earlier split has, in whichever group; returns how many."""
    seen, removed = np.zeros(0, dtype=np.uint64), 0
    for split in range(len(SPLITS)):
        here = []
        for found, code in zip(documents, codes, strict=True):
            mine = np.flatnonzero(code == split)
            again = mine[np.isin(found["hash"][mine], seen)] if seen.size else mine[:0]
            code[again] = GONE
            removed += again.size
            here.append(found["hash"][code == split])
        seen = np.unique(np.concatenate([seen, *here]))
    return removed


class _Part:
    """The documents of one group in one split."""

    def __init__(
        self,
        group: str,
        split: str,
        tokens: NDArray[Any],
        documents: Documents,
        chosen: NDArray[np.bool_],
        encoder: Encoder,
    ) -> None:
        self.group, self.split, self.tokens, self.documents = group, split, tokens, documents
        self.chosen, self.encoder = chosen, encoder
        self.ends = np.cumsum(documents["tokens"])

    def write(self, out: Path, place: int, context: int, notes: dict[str, int]) -> dict[str, Any]:
        """Write its arrays; returns its entry in the manifest."""
        prompts = self.documents["prompt"] >= 0
        if prompts.any() and not prompts.all():
            raise ValueError(f"group {self.group!r} mixes plain text and instruction data; give them a group each")
        name = str(out / f"{self.split}.{place}.{{}}.bin")
        about = {"documents": int(self.chosen.sum()), "bytes": int(self.documents["bytes"][self.chosen].sum())}
        if not prompts.any():
            size, digest = _write(name.format("tokens"), self._plain())
            return {"tokens": size // self.tokens.itemsize, "sha256": digest, **about}
        tokens, mask = self._examples(context, notes)
        size, digest = _write(name.format("tokens"), [tokens])
        _, mask_digest = _write(name.format("mask"), [mask])
        return {"tokens": len(tokens), "sha256": digest, "mask": mask_digest, "loss": int(mask.sum()), **about}

    def _plain(self) -> Iterator[NDArray[Any]]:
        """The tokens of the chosen documents, end to end."""
        begin = 0
        while begin < len(self.ends):
            start = int(self.ends[begin - 1]) if begin else 0
            end = max(begin + 1, int(np.searchsorted(self.ends, start + _PIECE_TOKENS)))
            chosen = np.repeat(self.chosen[begin:end], self.documents["tokens"][begin:end])
            yield self.tokens[start : int(self.ends[end - 1])][chosen]
            begin = end

    def _examples(self, context: int, notes: dict[str, int]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Whole examples in sequences, filled up with EOS that carries no loss; and the mask of what carries loss."""
        chosen = np.flatnonzero(self.chosen)
        prompts, lengths = self.documents["prompt"][chosen], self.documents["tokens"][chosen]
        begins = self.ends[chosen] - lengths
        long = lengths > context  # keep the answer, and as much of the prompt before it as fits
        kept = np.maximum(context - (lengths - prompts), context // 4)  # of the prompt; a longer answer loses its end
        dropped = np.where(long, np.maximum(prompts - kept, 0), 0)
        begins, prompts, lengths = begins + dropped, prompts - dropped, np.minimum(lengths - dropped, context)
        answers = int((self.ends[chosen] > begins + lengths).sum())
        rows = pack(lengths.tolist(), context)
        tokens = np.full((len(rows), context), self.encoder.eos, dtype=self.encoder.dtype)
        mask = np.zeros((len(rows), context), dtype=np.uint8)
        for row, examples in enumerate(rows):
            at = 0
            for e in examples:
                end = at + int(lengths[e])
                tokens[row, at:end] = self.tokens[begins[e] : begins[e] + lengths[e]]
                mask[row, at + int(prompts[e]) : end] = 1
                at = end
        padding = tokens.size - int(lengths.sum())
        counts = {
            "prompts cut at their beginning to fit a sequence": int((dropped > 0).sum()),
            "answers cut at their end to fit a sequence": answers,
            "tokens of padding": padding,
        }
        for what, count in counts.items():
            if count:
                notes[what] = notes.get(what, 0) + count
        return tokens.ravel(), mask.ravel()


def _write(file: str, parts: Iterable[NDArray[Any]]) -> tuple[int, str]:
    """Write arrays one after the other; returns bytes and SHA-256."""
    size, digest = 0, hashlib.sha256()
    with open(file, "wb") as out:
        for part in parts:
            content = part.tobytes()
            out.write(content)
            digest.update(content)
            size += len(content)
        out.flush()
        os.fsync(out.fileno())
    return size, digest.hexdigest()


def _check_sizes(
    recipe: DataRecipe, manifest: dict[str, Any], ruled: Sequence[bool], before: Sequence[Sequence[int]]
) -> None:
    """Every part that has documents, or was to get some, must have at least one sequence."""
    nothing = {"tokens": 0, "documents": 0}
    for group, by_rule, documents in zip(manifest["groups"], ruled, before, strict=True):
        for split, had in zip(SPLITS, documents, strict=True):
            part = manifest["splits"].get(split, {}).get(group, nothing)
            if had and not part["documents"]:
                raise ValueError(f"all {had} documents of group {group!r} in {split} are also in an earlier split")
            expected = by_rule and (split == "train" or getattr(recipe.splits, split) > 0)
            if part["tokens"] >= recipe.context or (part["documents"] == 0 and not expected):
                continue
            more = f"raise splits.{split}, give a number of documents (splits.{split}=20), set cut: 20000"
            remedy = "add text, leave it out, hold out less (splits)" if split == "train" else more
            raise ValueError(
                f"group {group!r} has {part['tokens']} tokens in {part['documents']} documents in its {split} split, "
                f"less than one sequence of context={recipe.context}: {remedy}, or lower context"
            )
