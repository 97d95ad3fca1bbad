"""A corpus of real text without a download: what Python, NumPy and SciPy bring along, in groups that differ.

In: how much of each group. Out: one file of JSON lines per group, built in seconds and kept in a cache. The same files
give the same bytes, wherever they are and whatever else is installed. `python` is library code without docstrings;
`prose` is the docstrings and the language reference, taken out of the code so that the two groups stay apart; `tests`
is test code, `headers` declarations in C, `stubs` type declarations. Licences are too little text to be a group.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import inspect
import json
import os
import platform
import shutil
import sysconfig
import uuid
import warnings
from collections.abc import Iterator
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from aioli.data.store import sha256_of

FORMAT = 1  # raised when the same files give another corpus
PACKAGES = ("numpy", "scipy")
GROUPS = ("python", "prose", "tests", "headers", "stubs")
FEWEST = 3  # groups that make a corpus
INDEX = "index.json"
MEGABYTE = 1_000_000
LONGEST = 200_000  # bytes at which a document is cut
SHORTEST = dict.fromkeys(GROUPS, 500) | {"prose": 200}  # characters; a docstring may be shorter than a file
REMEDY = "use a Python that has its library as files, and complete packages: pip install --force-reinstall numpy scipy"

_SKIPPED = {"__pycache__", "site-packages", "dist-packages", "lib-dynload", "encodings"}  # encodings: tables of numbers
_GENERATED = ("_sysconfigdata", "_lapack_subroutines", "_blas_subroutines")
_TESTS = {"test", "tests", "_tests", "idle_test"}
_READMES = ("README", "NEWS", "HISTORY", "architecture")
_ONLY_PROSE = ("topics.py", "_doc.py", "newdocs.py", "newdocs_scalars.py")  # modules of nothing but documentation
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

_File = tuple[str, str, int]  # name, path, size
_Document = tuple[str, str, bytes]  # digest, source, text


def local_corpus(megabytes: float = 4.0, cache: str | Path | None = None) -> dict[str, Path]:
    """Files of JSON lines by group, each with about `megabytes` of text or all there is; built unless in the cache.

    A group is present if it reaches 1 MB (or `megabytes`, if that is less). The cache is in `cache`, by default in
    $AIOLI_CACHE, or $XDG_CACHE_HOME/aioli, or ~/.cache/aioli.
    """
    if not 0 < megabytes < float("inf"):
        raise ValueError(f"megabytes must be a positive number, not {megabytes}")
    if cache is None:
        cache = os.environ.get("AIOLI_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "aioli")
    try:
        root = Path(cache).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"cannot use the cache {cache} ({error}); set AIOLI_CACHE to a writable directory") from None
    files = _files()
    target = root / f"local-{_fingerprint(files, megabytes)}"
    if (cached := _cached(target)) is not None:
        return cached
    building = root / f".{target.name}.{uuid.uuid4().hex}"
    try:
        building.mkdir(parents=True)
        corpus = _corpus(files, megabytes * MEGABYTE)
        _write(building, corpus)
        _publish(building, target)
    except OSError as error:
        raise ValueError(f"cannot use the cache {root} ({error}); set AIOLI_CACHE to a writable directory") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return {group: target / f"{group}.jsonl" for group in corpus}


def _fingerprint(files: dict[str, list[_File]], megabytes: float) -> str:
    """Versions, and name and size of every file that the corpus is drawn from."""
    listing = {group: [(name, size) for name, _, size in found] for group, found in files.items()}
    versions = [platform.python_version(), *(each.version for name in PACKAGES for each in distributions(name=name))]
    return hashlib.sha256(json.dumps([FORMAT, float(megabytes), versions, listing]).encode()).hexdigest()[:16]


def _files() -> dict[str, list[_File]]:
    """All files that may be used, by group. Links to directories are not followed, so that there is no loop."""
    roots = {"stdlib": sysconfig.get_path("stdlib"), "include": sysconfig.get_path("include")}
    for package in PACKAGES:
        if (spec := find_spec(package)) is not None and spec.origin is not None:
            roots[package] = os.path.dirname(spec.origin)
    files: dict[str, list[_File]] = {group: [] for group in GROUPS}
    for name, root in roots.items():
        for folder, folders, names in os.walk(root):
            folders[:] = [each for each in folders if each not in _SKIPPED]
            inside = PurePosixPath(name, *Path(folder).relative_to(root).parts)
            for each in names:
                group, path = _group(inside.parts, each), os.path.join(folder, each)
                if group is not None and os.path.isfile(path):
                    files[group].append((f"{inside}/{each}", path, os.path.getsize(path)))
    return {group: sorted(found) for group, found in files.items()}


def _group(folders: tuple[str, ...], name: str) -> str | None:
    suffix = os.path.splitext(name)[1]
    testing = not _TESTS.isdisjoint(folders) or name.startswith(("test_", "conftest."))
    if name.startswith(_GENERATED):
        return None
    if suffix == ".py":
        return "tests" if testing else "prose" if name.endswith(_ONLY_PROSE) else "python"
    if suffix in (".rst", ".md", ".txt"):
        return "prose" if name.startswith(_READMES) and not testing else None
    return {".pyi": "stubs", ".h": "headers", ".hpp": "headers"}.get(suffix)


class _Pool:
    """Texts of one group. `seen` is shared by all groups, so that no text is in two of them."""

    def __init__(self, shortest: int, seen: set[str]) -> None:
        self.shortest, self.seen, self.size = shortest, seen, 0
        self.documents: list[_Document] = []

    def add(self, source: str, text: str) -> None:
        data = text.encode("utf-8", "ignore")[:LONGEST]
        digest = hashlib.sha256(data).hexdigest()
        if len(text) >= self.shortest and b"\0" not in data and digest not in self.seen:
            self.seen.add(digest)
            self.documents.append((digest, source, data))
            self.size += len(data)

    def sample(self, budget: float) -> Iterator[_Document]:
        """Documents in the order of their digests, until the budget is reached."""
        for document in sorted(self.documents):
            if budget > 0:
                yield document
            budget -= len(document[2])


def _corpus(files: dict[str, list[_File]], budget: float) -> dict[str, list[_Document]]:
    """The documents of every group that is large enough."""
    seen: set[str] = set()
    pools = {group: _Pool(SHORTEST[group], seen) for group in GROUPS}
    for group in ("headers", "stubs", "tests", "prose"):
        for _, name, text in _read(files[group]):
            for place, passage in _strings(text) if group == "prose" and name.endswith(".py") else [("", text)]:
                pools[group].add(name + place, passage)
    for _, name, text in _read(files["python"]):
        if min(pools["python"].size, pools["prose"].size) >= budget:  # parsing takes most of the time
            break
        code, docstrings = _split(text)
        pools["python"].add(name, code)
        for place, passage in docstrings:
            pools["prose"].add(name + place, passage)
    least = min(MEGABYTE, budget)
    corpus = {group: list(pool.sample(budget)) for group, pool in pools.items() if pool.size >= least}
    if len(corpus) < FEWEST:
        sizes = ", ".join(f"{group} {pool.size / MEGABYTE:.2f} MB" for group, pool in pools.items())
        raise ValueError(f"fewer than {FEWEST} groups have {least / MEGABYTE:g} MB here ({sizes}); {REMEDY}")
    return corpus


def _read(files: list[_File]) -> list[tuple[bytes, str, str]]:
    """Digests, names and texts, sorted: any first part is a sample of the whole. What is not UTF-8 is left out."""
    found = []
    for name, path, _ in files:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = Path(path).read_text(encoding="utf-8-sig")
            found.append((hashlib.sha256(text.encode()).digest(), name, text))
    return sorted(found)


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module(body=[], type_ignores=[])


def _strings(source: str) -> list[tuple[str, str]]:
    """The strings in a module, with the lines they are on."""
    constants = [node for node in ast.walk(_parse(source)) if isinstance(node, ast.Constant)]
    return [(f":{node.lineno}", inspect.cleandoc(node.value)) for node in constants if isinstance(node.value, str)]


def _split(source: str) -> tuple[str, list[tuple[str, str]]]:
    """Code without its docstrings, and the docstrings with the lines they are on; nothing if it cannot be parsed."""
    tree = _parse(source)
    lines, docstrings = source.split("\n") if tree.body else [], []
    dropped: set[int] = set()
    pending: list[ast.AST] = [tree]  # statements only: expressions have no docstrings and are most of the tree
    while pending:
        node = pending.pop()
        for field in ("body", "orelse", "finalbody", "handlers"):
            pending.extend(getattr(node, field, ()))
        if not isinstance(node, _DOCUMENTED) or not (docstring := ast.get_docstring(node)):
            continue
        first = node.body[0]
        docstrings.append((f":{first.lineno}", docstring))
        start, end = first.lineno - 1, first.end_lineno or first.lineno
        rest = lines[start].encode()[: first.col_offset] + lines[end - 1].encode()[first.end_col_offset :]
        if not rest.partition(b"#")[0].strip():  # no code is on its lines
            dropped.update(range(start, end))
            if len(node.body) == 1:
                lines[start] = " " * first.col_offset + "pass"
                dropped.remove(start)
    return "\n".join(line for number, line in enumerate(lines) if number not in dropped), docstrings


def _write(folder: Path, corpus: dict[str, list[_Document]]) -> None:
    texts, index = {}, {}
    for group, documents in corpus.items():
        lines = [
            {"text": text.decode("utf-8", "ignore"), "meta": {"redpajama_set_name": group, "source": source}}
            for _, source, text in documents
        ]
        texts[f"{group}.jsonl"] = text = "".join(json.dumps(line) + "\n" for line in lines)
        index[group] = {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    for name, text in {**texts, INDEX: json.dumps(index)}.items():
        with (folder / name).open("w", encoding="ascii", newline="\n") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())


def _publish(building: Path, target: Path) -> None:
    """Give the corpus its name, unless another process did so first; what is damaged is replaced file by file."""
    try:
        os.replace(building, target)
    except OSError:
        if not target.is_dir():
            raise
        if _cached(target) is None:
            for file in building.iterdir():
                os.replace(file, target / file.name)


def _cached(target: Path) -> dict[str, Path] | None:
    """The files of a corpus that is complete and undamaged."""
    try:
        index = json.loads((target / INDEX).read_text())
        files = {group: target / f"{group}.jsonl" for group in GROUPS if group in index}
        found = {group: {"bytes": file.stat().st_size, "sha256": sha256_of(file)} for group, file in files.items()}
    except (OSError, ValueError, TypeError):
        return None
    return files if found == index and len(files) >= FEWEST else None
