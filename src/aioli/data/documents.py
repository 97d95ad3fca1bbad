"""Records to documents: the text, the group it belongs to, and a hash of its content that everything else rests on."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from aioli.data.reading import DamagedError, Input, Raw, bare_name, records
from aioli.data.recipe import DataRecipe, Source

LEFT_OUT = "left out"
BY_RULE, CODES = 255, {"train": 0, "val": 1, "test": 2, "val+test": 3}
_CHUNK_CHARACTERS, _CHUNK_DOCUMENTS = 1 << 20, 4096
_SURROGATES = re.compile("[\ud800-\udfff]")


class Document(NamedTuple):
    """One document."""

    group: str
    text: str
    prompt: str | None
    """Comes before the text and carries no loss; None: plain text."""
    bytes: int
    """Length in UTF-8, with the prompt."""
    hash: int
    """64 bits of its content: equal for equal documents, and what decides its split."""
    split: int


@dataclass
class Chunk:
    """Some documents, and where reading has got to after them."""

    input: int
    record: int
    read: int = 0
    """Bytes of all inputs that have been read."""
    documents: list[Document] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    """What was left out or mended, counted."""


def chunks(recipe: DataRecipe, entries: Sequence[Input], at: int = 0, record: int = 0) -> Iterator[Chunk]:
    """The documents of all inputs from a position on, about a megabyte at a time."""
    chunk, size, before = Chunk(at, record), 0, sum(entry.bytes for entry in entries[:at])
    for number, entry in enumerate(entries[at:], at):
        for found in documents(recipe, entry, record if number == at else 0):
            chunk.documents += found.documents
            chunk.notes += found.notes
            chunk.input, chunk.record, chunk.read = number, found.number, before + found.read
            size += sum(len(document.text) + len(document.prompt or "") for document in found.documents)
            if size >= _CHUNK_CHARACTERS or len(chunk.documents) >= _CHUNK_DOCUMENTS:
                yield chunk
                chunk, size = Chunk(number, found.number, chunk.read), 0
        before += entry.bytes
        chunk.input, chunk.record, chunk.read = number + 1, 0, before
    yield chunk


class Found(NamedTuple):
    """One record: what it holds, and how much of its input has been read by then."""

    raw: Raw | None
    """As it stands in the input; None where the rest of an input could not be read."""
    documents: list[Document]
    notes: Counter[str]
    number: int
    read: int


def documents(recipe: DataRecipe, entry: Input, skip: int = 0, whole: bool = False) -> Iterator[Found]:
    """Record by record; `whole` records have all their fields, not only those that the source names."""
    maker, number = _Maker(recipe, entry), skip
    try:
        for raw, read in records(entry, skip, whole):
            number += 1
            notes: Counter[str] = Counter()
            try:
                made = maker.documents(raw, number, notes)
            except ValueError:
                if recipe.bad_records == "error":
                    raise
                made, notes = [], Counter({f"{LEFT_OUT}: bad records": 1})
            yield Found(raw, made, notes, number, read)
    except DamagedError:
        if recipe.bad_records == "error":
            raise
        lost = Counter({f"{LEFT_OUT}: the rest of {entry.name} from record {number + 1} on": 1})
        yield Found(None, [], lost, number, entry.bytes)


class _Maker:
    """Turns the records of one input into documents."""

    def __init__(self, recipe: DataRecipe, entry: Input) -> None:
        self.source, self.entry, self.cut = entry.source, entry, recipe.cut
        self.others: set[str] = set()
        self.key = str(recipe.splits.seed).encode()[:64]
        self.split = BY_RULE if entry.source.split is None else CODES[entry.source.split]
        self.group = entry.source.group if entry.file is None else _by_path(entry.source, entry.file)
        if entry.kind == "text" and (self.source.group_field or self.source.completion):
            raise ValueError(f"{entry.name} is plain text and has no fields; records are .jsonl, .json or .parquet")

    def documents(self, raw: Raw, number: int, notes: Counter[str]) -> list[Document]:
        """The documents of one record: none if it is empty or not wanted, several if it is cut."""
        where = f"{self.entry.name}, record {number}" if self.entry.kind != "text" else self.entry.name
        if self.entry.kind == "text":
            assert isinstance(raw, bytes)
            text, prompt, group = _decode(raw, notes), None, self.group
        else:
            if isinstance(raw, bytes) and not raw.strip():
                return []
            record = as_record(raw, where, notes)
            text, prompt = _texts(self.source, record, where, notes)
            group = self.group if self.source.group_field is None else _name(record, self.source.group_field, where)
        assert group is not None
        group = _SURROGATES.sub("\ufffd", group)
        if self.source.groups:
            if group not in self.source.groups:
                self.others |= {group} if len(self.others) < 20 else set()
                what = repr(group) if group in self.others else "further groups"
                notes[f"documents of {what}, which `groups` leaves out"] += 1
                return []
            group = self.source.groups[group]
        if not text.strip():
            notes["empty documents"] += 1
            return []
        text, prompt = _sound(text, notes), None if prompt is None else _sound(prompt, notes)
        pieces = [text] if self.cut is None or prompt is not None else cut_at_lines(text, self.cut)
        return [self._document(group, piece, prompt) for piece in pieces]

    def _document(self, group: str, text: str, prompt: str | None) -> Document:
        content = text.encode()
        whole = content if prompt is None else prompt.encode() + b"\0" + content
        digest = hashlib.blake2b(whole, digest_size=8, key=self.key).digest()
        return Document(
            group,
            text,
            prompt,
            len(content) + len((prompt or "").encode()),
            int.from_bytes(digest, "little"),
            self.split,
        )


def _by_path(source: Source, file: Path) -> str | None:
    if source.group_by == "folder":
        return file.resolve().parent.name
    if source.group_by == "file":
        return bare_name(file)
    return source.group


def _decode(raw: bytes, notes: Counter[str]) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        notes["documents with invalid UTF-8, replaced"] += 1
        return raw.decode("utf-8-sig", errors="replace")


def _sound(text: str, notes: Counter[str]) -> str:
    """JSON can hold halves of characters, which are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        notes["documents with invalid UTF-8, replaced"] += 1
        return _SURROGATES.sub("\ufffd", text)
    return text


def as_record(raw: Raw, where: str, notes: Counter[str]) -> dict[str, Any]:
    """A record as it was read, with its fields."""
    if isinstance(raw, bytes):
        try:
            found = json.loads(_decode(raw, notes))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise ValueError(f"{where} is not a record but {type(found).__name__}; it must be an object with fields")
        return found
    return raw


def lookup(record: dict[str, Any], path: str, where: str) -> Any:
    """A field, also of nested records and of records that are JSON inside a string."""
    if path in record:
        return record[path]
    value: Any = record
    for name in path.split("."):
        if isinstance(value, str) and value.startswith("{"):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                break
        if not isinstance(value, dict) or name not in value:
            break
        value = value[name]
    else:
        return value
    raise ValueError(f"{where} has no field {path!r}; its fields are {', '.join(_paths(record)) or 'none at all'}")


def _paths(record: dict[str, Any]) -> list[str]:
    """The fields of a record, nested ones with dots."""
    found: list[str] = []
    for name, value in list(record.items())[:40]:
        found += [f"{name}.{inner}" for inner in list(value)[:20]] if isinstance(value, dict) and value else [str(name)]
    return found


def _name(record: dict[str, Any], path: str, where: str) -> str:
    value = lookup(record, path, where)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"{where}: {path}={value!r} does not name a group")
    return str(value)


def _texts(source: Source, record: dict[str, Any], where: str, notes: Counter[str]) -> tuple[str, str | None]:
    """Text, and prompt of instruction data."""
    if source.completion is None or source.prompt is None:
        value = lookup(record, source.text_field, where)
        if isinstance(value, bytes):  # a binary column, or text that is not UTF-8
            value = _decode(value, notes)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{where}: {source.text_field} is {type(value).__name__}, not text")
        return value or "", None
    return fill(source.completion, record, where), fill(source.prompt, record, where)


def fill(template: str, record: dict[str, Any], where: str) -> str:
    """A field's text, or a template with {fields}; of several answers the first."""

    def text(path: str) -> str:
        value = lookup(record, path, where)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if isinstance(value, dict | list):
            raise ValueError(f"{where}: {path} is {type(value).__name__}, not text")
        return "" if value is None else str(value)

    return re.sub(r"\{([^{}]+)\}", lambda found: text(found[1]), template) if "{" in template else text(template)


def cut_at_lines(text: str, size: int) -> list[str]:
    """Pieces of at most `size` characters that end with a line where there is one in their second half."""
    pieces, begin = [], 0
    while len(text) - begin > size:
        end = text.rfind("\n", begin + size // 2, begin + size) + 1 or begin + size
        pieces.append(text[begin:end])
        begin = end
    return [*pieces, text[begin:]]
