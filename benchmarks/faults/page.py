"""docs/reliability.md, made from results/soak.json and results/load.json, if that is there: no figure is by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Found = dict[str, Any]

PROMISES = """## What is promised

- **A kill costs time, never work that was saved.** `aioli train`, `prepare`, `mix` and `compare` may be killed at any
  moment, also inside a write. The same command goes on from the last checkpoint, log or finished run, and ends with
  the bits of one that nothing happened to: weights, optimizer, policy, journal (times apart), token store, table.
- **Whole or not at all.** Every file that is read back is written beside its place, synced and renamed. Checkpoints,
  models and stores are directories that are renamed; one that is removed is renamed first. Nobody finds half of one.
- **Nothing is left behind.** After a command has ended there is no lock, no claim and no temporary file, whatever
  happened to the one before it. The lock of a dead process holds nobody up; a claim of a dead process on the same
  machine is taken over at once, on another machine after a minute without a sign of life.
- **SIGTERM and Ctrl-C save first.** A run ends with the step it is in; `prepare` keeps what was tokenized.
- **A disk that is full, failing or read-only is one line and exit code 2**, with the place; a comparison names the
  runs that failed and ends with 1. Once there is room the same command goes on. What was saved before stays as it
  was.
- **One writer.** A second process on the same run or store is refused and told who has it; a second comparison on the
  same run store shares the work: each run is trained by one of them.
- **Clocks decide nothing.** The time of day may jump; what is stored or chosen does not depend on it, and
  signs of life of another machine are told by the clock of the file system.
- **A worker that dies is replaced**, in the local pool and in Ray, and its run goes on; a run that kills three in a
  row has failed.
- **Damage is noticed.** Manifests, checkpoints, models, results, fits, mixtures and recipes in runs carry SHA-256
  checksums, every line of a journal a CRC-32, and a run compares the arrays of its token store before it begins
  (`data.verify`). A file that was changed is refused by its name. What can be made again is, and the damage is said:
  a damaged result counts as absent, so that the run is finished again, and a `prepare` whose log is damaged begins
  anew. A last line of a journal that was cut short is left out and said to be; the run removes it when it goes on.
- **Older files are read.** What was written without checksums is used, and said to be unchecked.
- **Size is no trouble.** A thousand groups, journals of a million segments, a thousand finished runs and 32 writers at
  once stay within the bounds below (`make load`).

What is promised about bad and hostile input is in [SECURITY.md](../SECURITY.md), about odd numbers in
[Numerical trouble](numerics.md).

## What is not

- A power failure is not a kill: it is survived as far as the file system keeps what `fsync` promised, which cannot be
  tried here.
- Damage on purpose: a checksum can be computed anew.
- A token store that is opened in a loop of your own is checked when you ask: `TokenStore(path, verify=True)`.
- Files that say what is going on (`status.json`, `log.txt`) and pages for people have no checksum; nothing reads them
  back.
- Locks on network file systems that have none; run stores work there, by claims.
- Exact bits across other hardware, numbers of processes, or versions of torch."""


def page(found: Found, load: Path) -> str:
    """The page of a result."""
    parts = [_head(found), PROMISES, _faults(found), _damage(found), _load(load)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _head(found: Found) -> str:
    flips = sum(row["flips"] for row in found["damage"])
    bad = sum(row["failed"] for row in found["faults"]) + sum(row["missed"] for row in found["damage"])
    verdict = "everything was as promised" if not bad else f"{bad} times something was not as promised (see below)"
    part = "" if found["share"] == 1 else f" It was {found['share']:.0%} of the full one."
    return f"""# Reliability

What is promised about faults, and the figures of the last soak: {found["kills"]} kills and {flips} damaged files in
{found["minutes"]:.0f} minutes on {found["machine"]["cores"]} cores; {verdict}.{part}
`make soak` does it again and renews this page, which is made from [results/soak.json](../results/soak.json); `--seed`
tries other moments. A small part of it runs with the tests.{found.get("remark", "")}"""


def _faults(found: Found) -> str:
    rows = [
        [row["fault"], f"`{row['command']}`", str(row["faults"]), str(row["trials"]), str(row["failed"])]
        for row in found["faults"]
    ]
    notes = sorted({f"{row['fault']}: {row['note']}." for row in found["faults"] if row["note"]})
    wrong = [f"- `{row['command']}`, {row['fault']}: {what}" for row in found["faults"] for what in row["wrong"]]
    about = """## Faults

Small jobs, really trained. After each fault the same command was run again without one; what it left was compared with
what an undisturbed command leaves, byte by byte, and searched for anything that should not be there. A trial is one
such end; it can take several faults."""
    head = ("fault", "command", "faults", "trials", "not as promised")
    return "\n\n".join(part for part in (about, _table(head, rows), "\n".join(notes), "\n".join(wrong)) if part)


def _damage(found: Found) -> str:
    names = ("flips", "detected", "harmless", "missed")
    rows = [[row["file"], *(str(row[name]) for name in names)] for row in found["damage"]]
    about = """## Damage

One bit of a file, anywhere in it, was turned over, and the file was used: solved, exported, watched, gone on with,
trained on. Detected: refused in one line with the name of the file, or said with its name and made good, so that the
end is the same to the bit. Harmless: nothing was said, and what came of it was the same, to the bit; such bits are
listed, with what stood there before and after."""
    where = [f"- {row['file']}: `{what}`" for row in found["damage"] for what in row.get("where", ())]
    wrong = [f"- {row['file']}: {what}" for row in found["damage"] for what in row["wrong"]]
    table = _table(("file", "damaged", "detected", "harmless", "missed"), rows)
    return "\n\n".join(part for part in (about, table, "\n".join(where), "\n".join(wrong)) if part)


def _load(file: Path) -> str:
    """Figures under load, if they were measured."""
    try:
        plain = json.loads(file.read_text())
    except (OSError, ValueError):
        return ""
    rows = [[row["what"], *(f"{row[k]:g} {row['unit']}".strip() for k in ("figure", "bound"))] for row in plain]
    bad = sum(not row["holds"] for row in plain)
    verdict = "every bound held" if not bad else f"{bad} bounds did not hold"
    about = f"""## Load

What `make load` measured last ([results/load.json](../results/load.json)); {verdict}."""
    return about + "\n\n" + _table(("what", "measured", "bound"), rows)
