"""`aioli prepare`: documents to a token store."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from aioli.cli.show import Bar, table
from aioli.data.store import SPLITS, TokenStore

EXAMPLES = """examples:
  aioli prepare recipe.yaml -o store                                      your own recipe
  aioli prepare recipe.yaml -o store context=2048 splits.val=0.01         the same, with settings changed
  aioli prepare slimpajama-local --data 'corpus/*.jsonl.gz' -o store      a ready recipe on your files
  aioli prepare local -o store                                            no data at hand: text found on this machine
  aioli prepare --list                                                    the ready recipes
  aioli prepare slimpajama-6b --print > recipe.yaml                       begin with a ready recipe
  aioli prepare --help-recipe                                             everything a recipe can say
  aioli prepare --check store                                             compare a store with its checksums

An interrupted prepare goes on where it stopped when the same command is run again.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "prepare",
        help="make a token store from files or datasets",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("recipe", nargs="?", help="a YAML file, or the name of a ready recipe")
    command.add_argument("settings", nargs="*", metavar="field=value", help="settings to change, such as context=128")
    command.add_argument("-o", "--out", help="directory to make")
    command.add_argument("--data", nargs="+", metavar="FILE", help="files to read instead of the recipe's")
    command.add_argument("--replace", action="store_true", help="replace a store that is there already")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--print", action="store_true", help="print the recipe and stop")
    command.add_argument("--list", action="store_true", help="list the ready recipes")
    command.add_argument("--help-recipe", action="store_true", help="list every field of a recipe")
    command.add_argument("--check", metavar="STORE", help="compare a store with its checksums")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what was asked for."""
    if options.check:
        return _check(options.check, options.json)
    if options.list:
        return _list(options.json)
    if options.help_recipe:
        return _help_recipe(options.json)
    _sorted_out(options)
    if options.recipe is None:
        raise ValueError("which recipe? Put a YAML file or a ready one (aioli prepare --list) first, before --data")
    if options.print:
        return _print(options.recipe)
    if options.out is None:
        raise ValueError("where to? Give a directory to make with -o")
    return _prepare(options)


def _sorted_out(options: argparse.Namespace) -> None:
    """Settings may stand anywhere: a word with = that is no file is one of them."""
    words = [word for word in (options.recipe, *options.settings) if word is not None] + list(options.data or ())
    settings = [word for word in words if "=" in word and not Path(word).exists()]
    options.data = [word for word in options.data or () if word not in settings]
    plain = [word for word in words if word not in settings and word not in options.data]
    options.recipe, options.settings = (plain[0] if plain else None), [*plain[1:], *settings]


def _prepare(options: argparse.Namespace) -> int:
    from aioli.data.preparing import prepare
    from aioli.data.recipe import DataRecipe, find
    from aioli.recipe import build, override

    plain = find(options.recipe)
    if options.data:
        sources: Any = plain.get("sources")
        alone = isinstance(sources, list) and len(sources) == 1 and isinstance(sources[0], dict)
        if not alone or "files" not in sources[0]:
            raise ValueError("--data is for recipes with one source of files; change the recipe instead")
        plain = {**plain, "sources": [{**sources[0], "files": options.data}]}
    recipe = build(DataRecipe, override(plain, options.settings, DataRecipe), options.recipe)
    bar = Bar("preparing")
    began = time.monotonic()

    def show(done: int, total: int, words: str) -> None:
        seconds = max(time.monotonic() - began, 1e-9)
        size = f"{done / 1e6:,.0f}/{total / 1e6:,.0f} MB read, " if total else ""
        rate = f", {done / 1e6 / seconds:,.1f} MB/s" if total else ""
        bar.show(done, total, f"{size}{words}{rate}")

    try:
        store = prepare(recipe, options.out, replace=options.replace, progress=show)
    except BaseException as error:
        if not isinstance(error, Exception):  # Ctrl-C or SIGTERM
            bar.clear()
            print("run the same command again to go on from here", file=sys.stderr)
        raise
    finally:
        bar.clear()
    print(json.dumps(summary(store), indent=2, ensure_ascii=False) if options.json else render(store))
    return 0


def summary(store: TokenStore) -> dict[str, Any]:
    """What is in a store, as plain data."""
    return {
        "store": str(store.path),
        "context": store.context,
        "vocabulary": store.vocabulary,
        "tokenizer": store.manifest.get("tokenizer", {}).get("name"),
        "splits": {
            split: {
                group: {
                    "documents": part.documents,
                    "bytes": part.bytes,
                    "tokens": part.tokens,
                    "sequences": part.tokens // store.context,
                    "loss": part.tokens if part.loss is None else part.loss,
                }
                for group, part in zip(store.groups, parts, strict=True)
            }
            for split, parts in store.parts.items()
        },
        "notes": store.manifest.get("notes", {}),
        "fingerprint": store.fingerprint,
    }


def render(store: TokenStore) -> str:
    """What is in a store, for people."""
    found = summary(store)
    splits = [split for split in SPLITS if split in found["splits"]]
    header = ["group", "documents", "bytes/token", *(f"{split} tokens" for split in splits), "train sequences"]
    rows, masked = [], store.masked
    if masked:
        header.append("carry loss")
    for group in store.groups:
        parts = [found["splits"][split][group] for split in splits]
        tokens = sum(part["tokens"] for part in parts)
        documents = "+".join(f"{part['documents']:,}" for part in parts)
        density = f"{sum(part['bytes'] for part in parts) / tokens:.2f}" if tokens else "-"
        train = found["splits"].get("train", {}).get(group, {}).get("sequences", 0)
        rows.append([group, documents, density, *(f"{part['tokens']:,}" for part in parts), f"{train:,}"])
        if masked:
            rows[-1].append(f"{sum(part['loss'] for part in parts) / max(tokens, 1):.0%}")
    lines = [
        f"{found['store']}: {len(store.groups)} groups, sequences of {store.context} tokens, vocabulary of "
        f"{store.vocabulary:,} ({found['tokenizer']})",
        "",
        table(header, rows),
    ]
    notes = [f"  {f'{count:,}' if count else 'no'} {what}" for what, count in found["notes"].items()]
    few = [
        f"{group} ({part['documents']} in {split})"
        for split in splits
        if split != "train"
        for group, part in found["splits"][split].items()
        if 0 < part["documents"] < 20
    ]
    if few:
        notes.append(f"  few documents are held out, so losses will be noisy: {', '.join(few)}; see `cut` and `splits`")
    return "\n".join([*lines, *(["", "worth knowing:", *notes] if notes else [])])


def _check(path: str, as_json: bool) -> int:
    store = TokenStore(path, verify=True)
    found = summary(store)
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else f"{path} is sound\n\n{render(store)}")
    return 0


def _list(as_json: bool) -> int:
    from aioli.data.recipe import ready

    about = {
        name: " ".join(line[1:].strip() for line in text.splitlines() if line.startswith("# "))
        for name, text in sorted(ready().items())
    }
    print(json.dumps(about, indent=2) if as_json else "\n".join(f"{name}\n    {text}" for name, text in about.items()))
    return 0


def _help_recipe(as_json: bool) -> int:
    from aioli.data.recipe import DataRecipe
    from aioli.recipe import describe

    rows = describe(DataRecipe)
    if as_json:
        print(json.dumps([dict(zip(("field", "default", "meaning"), row, strict=True)) for row in rows], indent=2))
    else:
        print(table(("field", "default", "meaning"), rows, left=3))
    return 0


def _print(name: str) -> int:
    from aioli.data.recipe import find, ready

    find(name)
    known = ready()
    print(known[name] if name in known else Path(name).read_text(encoding="utf-8"), end="")
    return 0
