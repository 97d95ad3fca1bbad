"""TokenStore: prepared text on disk. One memory-mapped array of tokens per group and split, and a JSON manifest.

In: a directory written by `prepare` (or by `write_store`). Out: rows of `context` tokens, read without copying. Every
array's size is checked on opening and its SHA-256 on request; nothing in the manifest is trusted as a path.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aioli.files import new_directory, read_text, sync_directory, unsealed, write_json

SCHEMA = 1
SPLITS = ("train", "val", "test")
MANIFEST = "manifest.json"
VOCABULARY = 1 << 24
"""No tokenizer has more tokens than that."""
DTYPES = {"uint16": np.uint16, "uint32": np.uint32}

Tokens = NDArray[np.unsignedinteger[Any]]
_VERIFIED: set[tuple[Any, ...]] = set()


@dataclass(frozen=True)
class Part:
    """The tokens of one group in one split."""

    tokens: int
    sha256: str
    documents: int = 0
    bytes: int = 0
    """Length of its text in UTF-8."""
    mask: str | None = None
    """SHA-256 of the array that says which tokens are trained on (instruction data); None: all of them."""
    loss: int | None = None
    """How many tokens are trained on; None: all of them."""


class TokenStore:
    """An opened store."""

    def __init__(self, path: str | Path, verify: bool = False) -> None:
        """Open the store at `path`; `verify` also compares every array with its checksum."""
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.groups: tuple[str, ...] = tuple(self.manifest["groups"])
        self.context = int(self.manifest["context"])
        self.dtype = DTYPES[self.manifest["dtype"]]
        self.vocabulary = int(self.manifest["vocabulary"])
        self.parts = {
            split: [_part(self.manifest["splits"][split][group]) for group in self.groups]
            for split in self.manifest["splits"]
        }
        for split in self.parts:
            for j in range(len(self.groups)):
                self._check_size(split, j)
        if verify:
            self.verify()

    @property
    def fingerprint(self) -> str:
        """SHA-256 over what a run sees: groups, context and the checksum of every array."""
        seen = {k: self.manifest[k] for k in ("groups", "context", "dtype", "splits")}
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()

    def file(self, split: str, group: int, kind: str = "tokens") -> Path:
        """The file of one array; named by the group's number, so that no name from data becomes a path."""
        return self.path / f"{split}.{group}.{kind}.bin"

    def _check_size(self, split: str, group: int) -> None:
        part = self.parts[split][group]
        wanted = {"tokens": part.tokens * np.dtype(self.dtype).itemsize}
        if part.mask is not None:
            wanted["mask"] = part.tokens
        for kind, size in wanted.items():
            file = self.file(split, group, kind)
            found = file.stat().st_size if file.is_file() else None
            if found != size:
                what = "is missing" if found is None else f"has {found} bytes, not {size}"
                raise ValueError(f"{file} {what}; the store is damaged, prepare it again")

    def verify(self, groups: Sequence[str] | None = None) -> None:
        """Compare every array, or those of some groups, with the checksum in the manifest; in one process an array is
        read once for as long as its file does not change."""
        for split, parts in self.parts.items():
            for group, part in enumerate(parts):
                if groups is not None and self.groups[group] not in groups:
                    continue
                sums = {"tokens": part.sha256} | ({} if part.mask is None else {"mask": part.mask})
                for kind, wanted in sums.items():
                    file = self.file(split, group, kind)
                    about = file.stat()
                    seen = (str(file.resolve()), about.st_ino, about.st_size, about.st_mtime_ns, wanted)
                    if seen in _VERIFIED and groups is not None:
                        continue
                    if sha256_of(file) != wanted:
                        raise ValueError(f"{file} does not match its checksum; the store is damaged, prepare it again")
                    _VERIFIED.add(seen)
        if groups is not None:
            return
        for name, wanted in self.manifest.get("tokenizer", {}).get("files", {}).items():
            file = self.path / "tokenizer" / Path(name).name
            if not file.is_file() or sha256_of(file) != wanted:
                raise ValueError(f"{file} is missing or does not match its checksum; prepare the store again")

    @property
    def tokenizer(self) -> Path:
        """The directory with the tokenizer, as `AutoTokenizer.from_pretrained` reads it."""
        return self.path / "tokenizer"

    def require_tokenizer(self, name: str | Path) -> None:
        """Refuse if the store was made with another tokenizer than this one (a path, or a name on the hub)."""
        from aioli.data.recipe import TokenizerChoice
        from aioli.data.tokenizer import load

        made = self.manifest.get("tokenizer", {})
        if not made:
            raise ValueError(f"{self.path} does not say with which tokenizer it was made")
        if load(TokenizerChoice(name=str(name), eos=made.get("eos_token"))).fingerprint != made.get("fingerprint"):
            raise ValueError(
                f"{self.path} was made with another tokenizer ({made.get('name', 'unknown')}) than {name}; use that "
                "one, or prepare the data again"
            )

    def sequences(self, split: str = "train") -> NDArray[np.int64]:
        """Whole sequences of each group."""
        self._has(split)
        return np.array([part.tokens // self.context for part in self.parts[split]], dtype=np.int64)

    def _has(self, split: str) -> None:
        if split not in self.parts:
            raise ValueError(f"{self.path} has no split {split!r}; it has {', '.join(self.parts)}")

    def rows(self, group: int | str, split: str = "train", kind: str = "tokens") -> Tokens:
        """The sequences of a group, (sequences, context), mapped from disk; a short tail is left out."""
        self._has(split)
        j = self._place(group) if isinstance(group, str) else group
        whole = self.parts[split][j].tokens // self.context * self.context
        dtype = self.dtype if kind == "tokens" else np.uint8
        if whole == 0:
            return np.zeros((0, self.context), dtype=dtype)
        mapped = np.memmap(self.file(split, j, kind), dtype=dtype, mode="r", shape=(whole,))
        return np.asarray(mapped).reshape(-1, self.context)

    def _place(self, group: str) -> int:
        if group not in self.groups:
            raise ValueError(f"{self.path} has no group {group!r}; it has {', '.join(self.groups)}")
        return self.groups.index(group)

    @property
    def masked(self) -> bool:
        """Whether any group has tokens that carry no loss."""
        return any(part.mask is not None for parts in self.parts.values() for part in parts)

    def masks(self, group: int, split: str = "train") -> Tokens | None:
        """Which tokens carry loss, like `rows`; None: all."""
        return None if self.parts[split][group].mask is None else self.rows(group, split, "mask")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)


def _digest(file: Any) -> str:
    total = hashlib.sha256()
    while piece := file.read(1 << 20):
        total.update(piece)
    return total.hexdigest()


def _part(plain: Mapping[str, Any]) -> Part:
    """From a manifest; what a later version may have added is left alone."""
    known = {f.name: plain[f.name] for f in fields(Part) if f.name in plain}
    part = Part(**known)
    numbers = (part.tokens, part.documents, part.bytes, 0 if part.loss is None else part.loss)
    if not all(isinstance(n, int) and 0 <= n < 1 << 53 for n in numbers):
        raise ValueError("counts must be whole numbers below 2^53, and not negative")
    if not isinstance(part.sha256, str) or not isinstance(part.mask, str | None):
        raise ValueError("checksums must be words")
    if part.loss is not None and part.loss > part.tokens:
        raise ValueError(f"{part.loss} of {part.tokens} tokens cannot carry loss")
    return part


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the store at `path`, checked."""
    file = path / MANIFEST
    if not file.is_file():
        lacks = f"it has no {MANIFEST}" if path.is_dir() else f"there is no directory {path.resolve()}"
        raise ValueError(f"{path} is not a token store: {lacks}; make one with `aioli prepare`")
    try:
        manifest = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read ({error}); the store is damaged, prepare it again") from None
    manifest = unsealed(manifest, file, "manifest of a token store")
    try:
        ok = (
            manifest["schema"] == SCHEMA
            and manifest["dtype"] in DTYPES
            and 1 <= manifest["context"] <= 1 << 24
            and all(isinstance(g, str) for g in manifest["groups"])
            and len(set(manifest["groups"])) == len(manifest["groups"]) > 0
            and all(set(parts) == set(manifest["groups"]) for parts in manifest["splits"].values())
            and set(manifest["splits"]) <= set(SPLITS)
            and all(_part(p).tokens >= 0 for parts in manifest["splits"].values() for p in parts.values())
            and isinstance(manifest["vocabulary"], int)
            and 1 <= manifest["vocabulary"] <= min(VOCABULARY, 1 << 8 * np.dtype(DTYPES[manifest["dtype"]]).itemsize)
            and isinstance(manifest.get("tokenizer", {}).get("files", {}), dict)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read ({error}); the store is damaged, prepare it again") from None
    if not ok:
        raise ValueError(f"{file} is not a manifest of schema {SCHEMA}; prepare the store again with this version")
    return dict(manifest)


def write_store(
    path: str | Path,
    splits: Mapping[str, Mapping[str, Tokens | Sequence[int]]],
    context: int,
    vocabulary: int,
    masks: Mapping[str, Mapping[str, NDArray[np.uint8]]] | None = None,
    about: Mapping[str, Any] | None = None,
) -> TokenStore:
    """Write tokens that are already in memory as a store, atomically: `splits[split][group]` is a flat array."""
    target = Path(path)
    if target.exists():
        raise ValueError(f"{target} exists already; remove it or choose another place")
    target.parent.mkdir(parents=True, exist_ok=True)
    groups = list(next(iter(splits.values())))
    dtype = "uint16" if vocabulary <= 1 << 16 else "uint32"
    checked = {s: {g: _checked(tokens, vocabulary, g) for g, tokens in parts.items()} for s, parts in splits.items()}
    for split, parts in checked.items():
        if split not in SPLITS or list(parts) != groups:
            raise ValueError(
                f"split {split!r} with groups {list(parts)}: splits are {', '.join(SPLITS)}, all with {groups}"
            )
        for group, mask in (masks or {}).get(split, {}).items():
            if group not in parts or len(mask) != len(parts[group]):
                raise ValueError(f"the mask of {group!r} in {split} must have one entry for each of its tokens")
    building = new_directory(target)
    try:
        manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "context": context,
            "dtype": dtype,
            "vocabulary": vocabulary,
            "groups": groups,
            "splits": {},
            **(about or {}),
        }
        for split in splits:
            manifest["splits"][split] = {}
            for j, group in enumerate(groups):
                tokens = checked[split][group].astype(DTYPES[dtype])
                entry = {"tokens": int(tokens.size), "sha256": _write(building / f"{split}.{j}.tokens.bin", tokens)}
                if masks and group in masks.get(split, {}):
                    mask = np.asarray(masks[split][group], dtype=np.uint8)
                    entry["mask"] = _write(building / f"{split}.{j}.mask.bin", mask)
                manifest["splits"][split][group] = entry
        write_json(building / MANIFEST, manifest)
        os.replace(building, target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return TokenStore(target)


def _checked(tokens: Any, vocabulary: int, group: str) -> NDArray[Any]:
    found = np.asarray(tokens)
    if found.ndim != 1 or not (np.issubdtype(found.dtype, np.integer) or found.size == 0):
        raise ValueError(f"the tokens of {group!r} must be one flat array of whole numbers, not {found.dtype}")
    if found.size and not 0 <= found.min() <= found.max() < vocabulary:
        raise ValueError(f"the tokens of {group!r} go from {found.min()} to {found.max()}; vocabulary={vocabulary}")
    return found


def _write(file: Path, array: NDArray[Any]) -> str:
    with file.open("wb") as out:
        out.write(array.tobytes())
        out.flush()
        os.fsync(out.fileno())
    return hashlib.sha256(array.tobytes()).hexdigest()
