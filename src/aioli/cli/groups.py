"""`aioli groups`: groups for a corpus that has none, as a recipe for `aioli prepare`."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from aioli.cli.show import Bar, need, say, table

if TYPE_CHECKING:
    from aioli.groups import Proposal
    from aioli.groups.fields import Candidate

EXAMPLES = """examples:
  aioli groups corpus.jsonl --by field                                   which fields look like names of groups
  aioli groups corpus.jsonl --by field --field meta.source -o recipe.yaml
  aioli groups corpus.jsonl --by field --field meta.site -k 10 -o recipe.yaml    the nine largest, and the others as one
  aioli groups data/ --by source -o recipe.yaml                          by folder, or by file if there is one folder
  aioli groups corpus.jsonl.gz --by cluster                              what clusters there are; nothing is written
  aioli groups corpus.jsonl.gz --by cluster -k 8 -o recipe.yaml          and a file for each in recipe-groups/
  aioli groups pages.parquet --by cluster --embeddings models/minilm --text-field content -o recipe.yaml

then:
  aioli prepare recipe.yaml -o store

Files: .jsonl, .json, .parquet, or one text per file; also .gz and .zst; globs and directories.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "groups",
        help="propose groups for a corpus that has none",
        description="Propose groups by a field, by files, or by clusters of what documents say, and write a recipe.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("files", nargs="+", metavar="FILE", help="files, globs or directories")
    command.add_argument("--by", choices=("cluster", "field", "source"), required=True, help="what makes a group")
    command.add_argument("-k", type=int, metavar="N", help="how many groups (default: as many as are found)")
    command.add_argument("--field", metavar="NAME", help="with --by field: which; a dot goes into nested records")
    command.add_argument("--level", choices=("file", "folder"), help="with --by source: what is a group")
    command.add_argument("--embeddings", metavar="FOLDER", help="with --by cluster: a sentence-transformers model here")
    command.add_argument("--text-field", default="text", metavar="NAME", help="the field with the text (default text)")
    command.add_argument("--sample", type=int, default=10_000, metavar="N", help="documents looked at (default 10,000)")
    command.add_argument("--seed", type=int, default=0, help="of the sample and the clusters (default 0)")
    command.add_argument(
        "--bad-records", choices=("error", "skip"), default="error", help="records that cannot be read (default: error)"
    )
    command.add_argument("-o", "--out", metavar="RECIPE.yaml", help="write a recipe")
    command.add_argument("--replace", action="store_true", help="replace what is there already")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Propose groups."""
    need("groups", "sklearn", "pydantic", "yaml")
    for name, rule in (("field", "field"), ("level", "source"), ("embeddings", "cluster")):
        if getattr(options, name) is not None and options.by != rule:
            raise ValueError(f"--{name} is for --by {rule}")
    bar, began = Bar("groups"), time.monotonic()

    def show(done: int, total: int, words: str) -> None:
        rate = f", {done / 1e6 / max(time.monotonic() - began, 1e-9):,.1f} MB/s" if options.by != "cluster" else ""
        bar.show(done, total, f"{words}{rate}")

    try:
        if options.by == "field" and options.field is None:
            return _fields(options, bar)
        from aioli.groups import propose

        found = propose(
            options.files,
            options.by,
            k=options.k,
            field=options.field,
            level=options.level,
            embeddings=options.embeddings,
            text_field=options.text_field,
            sample=options.sample,
            seed=options.seed,
            bad_records=options.bad_records,
            out=options.out,
            replace=options.replace,
            progress=show,
        )
    finally:
        bar.clear()
    say(json.dumps(found.to_json(), indent=2, ensure_ascii=False) if options.json else render(found))
    return 0


def _fields(options: argparse.Namespace, bar: Bar) -> int:
    """Show the fields that look like names of groups."""
    from aioli.groups.corpus import Corpus
    from aioli.groups.fields import candidates

    source = {"files": options.files, "text_field": options.text_field, "group": "all"}
    corpus = Corpus.of(source, options.bad_records, lambda done, total, words: bar.show(done, total, words))
    found = candidates(corpus, options.text_field)
    bar.clear()
    if not found:
        raise ValueError("no field looks like the name of a group; try --by cluster, or name one with --field")
    if options.out is not None:
        names = ", ".join(each.field for each in found[:5])
        raise ValueError(f"which field? Name one with --field; these look like names of groups: {names}")
    if options.json:
        say(json.dumps([each.to_json() for each in found], indent=2, ensure_ascii=False))
    else:
        say(render_fields(found))
    return 0


def render_fields(found: list[Candidate]) -> str:
    """Fields for people."""
    rows = [
        [
            each.field,
            f"{len(each.values):,}",
            f"{each.coverage:.0%}",
            ", ".join(f"{value} ({count:,})" for value, count in each.values.most_common(4))
            + (" …" if len(each.values) > 4 else ""),
        ]
        for each in found[:20]
    ]
    lines = [f"fields that look like names of groups, in {found[0].documents:,} documents:", ""]
    width = max(len(row[3]) for row in rows)
    header = ["field", "groups", "of documents", "the largest".ljust(width)]
    lines.append(table(header, [[*row[:3], row[3].ljust(width)] for row in rows]))
    return "\n".join([*lines, "", f"next: --by field --field {found[0].field} -o recipe.yaml"])


def render(found: Proposal) -> str:
    """Groups for people."""
    groups = found.groups
    documents = sum(group.documents for group in groups)
    lines = [f"{len(groups)} groups by {found.by}, {documents:,} documents", ""]
    rows = [
        [
            group.name,
            f"{group.documents:,}",
            f"{group.characters:,}",
            f"{group.share:.1%}",
            "–" if group.separation is None else f"{group.separation:.2f}",
        ]
        for group in groups
    ]
    lines += [table(["group", "documents", "characters", "share", "separation"], rows), ""]
    for group in groups:
        lines.append(f"{group.name}: {', '.join(group.words) or 'no telling words'}")
        lines += [f"    {line}" for line in group.examples]
    lines += ["", *_quality(found)]
    lines += [f"warning: {words}" for words in found.warnings]
    lines += [f"worth knowing: {count:,} {what}" for what, count in found.notes.items()]
    if found.out is not None:
        lines.append(f"written: {found.out}; next: aioli prepare {found.out} -o store")
    else:
        lines.append("nothing is written; -o recipe.yaml writes a recipe for aioli prepare")
    return "\n".join(lines)


def _quality(found: Proposal) -> list[str]:
    lines = []
    if found.separation is not None:
        words = "far apart" if found.separation > 0.5 else "apart" if found.separation > 0.25 else "overlapping"
        lines.append(
            f"separation {found.separation:.2f}: {words} (mean silhouette of {min(found.sampled, 2000):,} documents; "
            "1 far apart, 0 overlapping)"
        )
    if found.stability is not None:
        words = (
            "found again" if found.stability >= 0.8 else "partly found again" if found.stability >= 0.5 else "chance"
        )
        lines.append(f"stability {found.stability:.2f}: {words} in other halves of the documents (adjusted Rand index)")
    return lines
