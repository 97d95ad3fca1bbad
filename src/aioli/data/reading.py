"""Raw records out of files and datasets: plain text, JSON lines, Parquet, packed or not, and Hugging Face datasets.

What is cut short or damaged is refused by name; where a record stands is always known, so that reading can go on there.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from aioli.data.recipe import DataRecipe, Source

PACKED = (".gz", ".zst", ".zstd")
_PIECE, _FED, _LEAST = 1 << 18, 1 << 12, 1 << 6
"""Bytes that are read at once, and how many of them zstd is fed with at most and at least: it packs 32,000 : 1."""
LONGEST = 1 << 30
"""Bytes of the longest record or document, unpacked."""


class DamagedError(ValueError):
    """A whole file that cannot be read to its end."""


@dataclass(frozen=True)
class Input:
    """One file, or one Hugging Face dataset."""

    source: Source
    name: str
    bytes: int
    modified: int
    file: Path | None = None
    number: int = 0
    """Which source of the recipe it is of."""

    @property
    def kind(self) -> str:
        """What it holds: text, jsonl, json, parquet, or a dataset."""
        if self.file is None:
            return "dataset"
        file = self.file.with_suffix("") if self.file.suffix.lower() in PACKED else self.file
        return {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}.get(
            file.suffix.lower(), "text"
        )

    @property
    def identity(self) -> list[Any]:
        """Changes when the input does."""
        return [self.number, self.name, self.bytes, self.modified]


def bare_name(file: Path) -> str:
    """The name of a file without the suffixes that tell its type."""
    return Path(file.stem).stem if file.suffix.lower() in PACKED else file.stem


def inputs(recipe: DataRecipe) -> list[Input]:
    """Everything a recipe reads, in order."""
    found: list[Input] = []
    for number, source in enumerate(recipe.sources):
        if source.dataset is not None:
            found.append(replace(_dataset_input(source), number=number))
            continue
        if source.local:
            from aioli.data.local import local_corpus

            source = source.model_copy(update={"group_field": "meta.redpajama_set_name"})
            names = [str(path) for path in local_corpus().values()]
        else:
            names = [name for pattern in source.files for name in matches(pattern, f"sources.{number}.files")]
        for name in dict.fromkeys(names):
            stat = os.stat(name)
            found.append(Input(source, name, stat.st_size, stat.st_mtime_ns, Path(name), number))
    return found


def matches(pattern: str, where: str) -> list[str]:
    """The files that a pattern, a folder or a name stands for; refused if there are none."""
    pattern = os.path.expanduser(pattern)
    if os.path.isdir(pattern):
        pattern = os.path.join(glob.escape(pattern), "**", "*")
    found = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern, recursive=True))
    files = [name for name in found if os.path.isfile(name)]
    if not files:
        raise ValueError(f"{where}: no file matches {pattern!r} (looked in {os.getcwd()})")
    unreadable = [name for name in files if not os.access(name, os.R_OK)]
    if unreadable:
        raise ValueError(f"{where}: not allowed to read {unreadable[0]}")
    return files


# ---------------------------------------------------------------------- bytes of a file, unpacked


def unpacked(file: BinaryIO, suffix: str, name: str) -> Iterator[bytes]:
    """The content of an open file in pieces; complains if a packed file ends too early."""
    if suffix not in PACKED:
        while piece := file.read(_PIECE):
            yield piece
        return
    make = _Gzip if suffix == ".gz" else _zstd()
    try:
        stream, begun = make(), False
        while piece := file.read(_PIECE):
            while piece:
                if stream.eof:
                    piece = piece.lstrip(b"\0")  # padding between the members of a gzip file
                    if piece:
                        stream = make()
                    continue
                begun = True
                yield from stream.unpack(piece)
                piece = stream.unused if stream.eof else b""
    except Exception as error:  # zlib's and zstandard's own errors have no common base
        if isinstance(error, OSError):
            raise
        raise DamagedError(f"{name} is damaged: {error}") from None
    if not begun:
        raise DamagedError(f"{name} is empty; was its download interrupted?")
    if not stream.eof:
        raise DamagedError(f"{name} is cut short: it ends in the middle of its packed data; copy it again")


class _Gzip:
    """A member of a gzip file, unpacked in pieces of bounded size however much it is packed."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)

    def unpack(self, piece: bytes) -> Iterator[bytes]:
        while piece:
            yield self._stream.decompress(piece, _PIECE)
            piece = self._stream.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused(self) -> bytes:
        return self._stream.unused_data


class _Zstd:
    """A frame of a zstd file: what is packed a thousandfold is fed in little pieces, so that little comes out."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def unpack(self, piece: bytes) -> Iterator[bytes]:
        view, at, size = memoryview(piece), 0, _LEAST
        while at < len(view) and not self._stream.eof:
            found = self._stream.decompress(view[at : at + size])
            at += size
            size = max(_LEAST, min(_FED, size * 2 if len(found) <= _PIECE else size // 4))
            yield found
        self.unused = bytes(self._stream.unused_data) + bytes(view[at:])

    @property
    def eof(self) -> bool:
        return bool(self._stream.eof)


def _zstd() -> Callable[[], Any]:
    try:
        import zstandard
    except ImportError:
        raise ValueError("reading .zst needs zstandard: pip install 'aioli-mix[data]'") from None
    return lambda: _Zstd(zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj())


def lines(pieces: Iterator[bytes], name: str = "the file") -> Iterator[bytes]:
    """Lines without their ends."""
    rest: list[bytes] = []
    size = 0
    for piece in pieces:
        first, *more = piece.split(b"\n")
        rest.append(first)
        size = len(more[-1]) if more else size + len(first)
        if size > LONGEST:
            raise _too_long(name)
        if more:
            yield b"".join(rest)
            yield from more[:-1]
            rest = [more[-1]]
    if last := b"".join(rest):
        yield last


def whole(pieces: Iterator[bytes], name: str) -> bytes:
    """All of it."""
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size > LONGEST:
            raise _too_long(name)
    return b"".join(found)


def _too_long(name: str) -> DamagedError:
    return DamagedError(
        f"{name} holds a record or document of more than {LONGEST / 1e9:.1f} GB, unpacked; put one record on each line "
        "(.jsonl), or cut the text into several files"
    )


# ---------------------------------------------------------------------- records


Raw = bytes | dict[str, Any]


def records(entry: Input, skip: int = 0, whole: bool = False) -> Iterator[tuple[Raw, int]]:
    """Raw records from number `skip` on, each with how many bytes of the file have been read by then; `whole` reads all
    columns of Parquet files."""
    if entry.file is None:
        yield from ((record, 0) for record in _dataset(entry.source, skip))
    elif entry.kind == "parquet":
        yield from _parquet(entry, skip, whole)
    else:
        with entry.file.open("rb") as file:
            pieces = unpacked(file, entry.file.suffix.lower(), entry.name)
            for raw in itertools.islice(_split(pieces, entry), skip, None):
                yield raw, file.tell()


def _split(pieces: Iterator[bytes], entry: Input) -> Iterator[Raw]:
    if entry.kind == "text":
        yield whole(pieces, entry.name)
    elif entry.kind == "json":
        yield from _json(whole(pieces, entry.name), entry)
    else:
        yield from lines(pieces, entry.name)


def _json(content: bytes, entry: Input) -> Iterator[Raw]:
    """A .json file: a list of records, or JSON lines under another name."""
    if not content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        yield from content.split(b"\n")
        return
    try:
        found = json.loads(content.decode("utf-8-sig", errors="surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{entry.name} is not JSON: {error}") from None
    for record in found:
        yield record if isinstance(record, dict) else json.dumps(record).encode()


def _parquet(entry: Input, skip: int, whole: bool) -> Iterator[tuple[Raw, int]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError("reading .parquet needs pyarrow: pip install 'aioli-mix[data]'") from None
    try:
        with parquet.ParquetFile(entry.file) as file:
            names = file.schema_arrow.names
            wanted = {name if name in names else name.split(".")[0] for name in entry.source.fields}
            columns = None if whole or wanted - set(names) else sorted(wanted)
            total, done = file.metadata.num_rows, 0
            for batch in file.iter_batches(batch_size=_rows_at_once(file), columns=columns):
                done += len(batch)
                if done > skip:
                    rows = _rows(batch.slice(max(0, len(batch) - (done - skip))))
                    yield from ((row, entry.bytes * done // max(total, 1)) for row in rows)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedError(f"{entry.name} is damaged or cut short: {str(error).splitlines()[0]}") from None


def _rows_at_once(file: Any) -> int:
    """1024, or fewer where the file holds long texts: a page can repeat one text in all of its rows."""
    metadata = file.metadata
    sizes: list[int] = [metadata.row_group(k).total_byte_size for k in range(min(metadata.num_row_groups, 100))]
    return max(1, min(1024, LONGEST // 4 // max([1, *sizes])))


def _rows(batch: Any) -> list[dict[str, Any]]:
    """Records of a batch; a column of text that is not UTF-8 comes as bytes."""
    import pyarrow

    try:
        return list(batch.to_pylist())
    except UnicodeDecodeError:
        columns = []
        for column in batch.columns:
            text = pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)
            columns.append(column.cast(pyarrow.large_binary()) if text else column)
        return list(pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist())


def _dataset_input(source: Source) -> Input:
    """A dataset, and what tells one version of it from another: its files, or its commit on the hub."""
    assert source.dataset is not None
    place, name = Path(source.dataset), f"{source.dataset}:{source.part}"
    if place.is_dir():
        files = sorted(path for path in place.rglob("*") if path.is_file() and not path.name.startswith("."))
        stamps = [(str(path.relative_to(place)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        return Input(source, name, 0, zlib.crc32(json.dumps(stamps).encode()))
    try:
        from huggingface_hub import HfApi

        commit = HfApi().dataset_info(source.dataset, revision=source.revision).sha
    except Exception:  # no network, no such dataset: opening it will say so
        return Input(source, name, 0, 0)
    fixed = source.model_copy(update={"revision": commit})
    return Input(fixed, f"{name}@{commit}", 0, 0)


def _dataset(source: Source, skip: int) -> Iterator[dict[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise ValueError("Hugging Face datasets need datasets: pip install 'aioli-mix[data,hub]'") from None
    where = f"dataset {source.dataset!r}"
    assert source.dataset is not None
    try:
        if (Path(source.dataset) / "dataset_dict.json").is_file() or (Path(source.dataset) / "state.json").is_file():
            loaded = datasets.load_from_disk(source.dataset)
            found = loaded[source.part] if isinstance(loaded, dict) else loaded
            if not isinstance(loaded, dict) and source.part not in ("train", str(loaded.split)):
                raise ValueError(f"it holds one part only, {loaded.split or 'without a name'}")
        else:
            found = datasets.load_dataset(
                source.dataset,
                source.subset,
                split=source.part,
                revision=source.revision,
                streaming=source.streaming,
            )
    except Exception as error:  # whatever the hub, the network and the builders raise
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"cannot open {where}, part {source.part!r}: {reason[0]}") from None
    yield from found.skip(skip) if skip else found
