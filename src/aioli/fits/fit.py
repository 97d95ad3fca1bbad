"""A law fitted to a table of runs, with what shows how far it can be trusted; plain JSON on disk."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from aioli.files import explained, read_text, sealed, unsealed, write_text
from aioli.fits.diagnose import Trouble, diagnose, teaches
from aioli.fits.named import create_law, law_from_json, law_to_json, name_of
from aioli.fits.scoring import Choice, Scores, choose, held_out, measure, split
from aioli.fits.table import Runs
from aioli.lmo.design import as_design
from aioli.simplex import Array
from aioli.threads import one_thread

SCHEMA, KIND = 1, "aioli fit"


@dataclass(frozen=True)
class Fit:
    """A fitted law, the runs it was fitted to, and its measures."""

    law: Any
    runs: Runs
    scores: Scores
    """On runs of the table that were held out."""
    test: Scores | None = None
    """On another table."""
    troubles: tuple[Trouble, ...] = ()
    choices: tuple[Choice, ...] = ()
    """What `auto` chose from."""
    predicted: Array | None = field(default=None, compare=False)
    """What the law said of each run when it had not seen it; not kept on disk."""

    @property
    def name(self) -> str:
        """The law's name with its settings."""
        return name_of(self.law)

    def predict(self, P: ArrayLike) -> Array:
        """Losses of every target for every mixture."""
        return np.asarray(self.law.predict(P))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON; with the runs, so that `solve` can resample them."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "groups": list(self.runs.groups),
            "targets": list(self.runs.targets),
            "law": law_to_json(self.law),
            "held_out": self.scores.to_json(),
            "test": None if self.test is None else self.test.to_json(),
            "in_sample": {"mse": self.law.mse_.tolist(), "r2": self.law.r2_.tolist()},
            "warnings": [each.to_json() for each in self.troubles],
            "compared": [each.to_json() for each in self.choices],
            "renormalised_rows": self.runs.renormalised,
            "missing_losses": self.runs.missing,
            "notes": list(self.runs.notes),
            "columns": list(self.runs.columns),
            "runs": {
                "proportions": self.runs.P.tolist(),
                "losses": [[None if math.isnan(v) else v for v in row] for row in self.runs.L.tolist()],
            },
        }

    def save(self, path: str | Path) -> None:
        """Write it, whole or not at all."""
        with explained(Path(path)):
            write_text(Path(path), json.dumps(sealed(finite(self.to_json())), ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Fit:
        """Read it again; a file that is damaged or of another kind is refused."""
        file = Path(path)
        try:
            plain = json.loads(read_text(file))
        except OSError as error:
            raise ValueError(f"{file}: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise ValueError(f"{file} is not JSON; give a file that aioli fit has written with -o") from None
        if not isinstance(plain, Mapping) or plain.get("kind") != KIND:
            raise ValueError(f"{file} is not a fit; give a file that aioli fit has written with -o")
        plain = unsealed(plain, file, "fit")
        if plain.get("schema") != SCHEMA:
            raise ValueError(f"{file} has schema {plain.get('schema')!r}, this version reads {SCHEMA}; fit it again")
        try:
            return cls.from_json(plain)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            words = (
                str(error) if isinstance(error, ValueError) else f"a field is missing or of the wrong kind ({error})"
            )
            raise ValueError(f"{file} is damaged: {words}; fit it again") from None

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Fit:
        """The inverse of `to_json`."""
        groups, targets = (tuple(str(name) for name in plain[key]) for key in ("groups", "targets"))
        P = as_design(np.array(plain["runs"]["proportions"], dtype=np.float64))
        L = np.array(plain["runs"]["losses"], dtype=np.float64).reshape(len(P), -1)
        columns = tuple(str(name) for name in plain["columns"])
        notes = tuple(str(note) for note in plain["notes"])
        counts = int(plain["renormalised_rows"]), int(plain["missing_losses"])
        runs = Runs(groups, targets, P, L, *counts, notes, columns if len(columns) == len(groups) else ())
        law = law_from_json(plain["law"], P, L, runs.weights)
        scores, test = (None if plain[key] is None else _scores(plain[key]) for key in ("held_out", "test"))
        if scores is None:
            raise ValueError("it has no held-out scores")
        troubles = tuple(_trouble(**each) for each in plain["warnings"])
        return cls(law, runs, scores, test, troubles, tuple(Choice(**each) for each in plain["compared"]))


def _trouble(target: Any, kind: Any, words: Any, p_value: Any = None) -> Trouble:
    return Trouble(str(target), str(kind), str(words), None if p_value is None else float(p_value))


def _scores(plain: Mapping[str, Any]) -> Scores:
    mse, r2, rank = (np.array(plain[key], dtype=np.float64) for key in ("mse", "r2", "spearman"))
    return Scores(mse, r2, rank, np.array(plain["runs"], dtype=np.int64), str(plain["how"]))


def finite(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _by_name(words: str, groups: tuple[str, ...]) -> str:
    """What a law says of a table, with names instead of numbers and options instead of settings."""
    words = re.sub(r"group (\d+) is", lambda found: f"group {groups[int(found[1])]} is", words)
    words = re.sub(
        r"groups ([\d, ]+) are",
        lambda found: f"groups {', '.join(groups[int(j)] for j in found[1].split(','))} are",
        words,
    )
    return words.replace("add runs or set ridge > 0", "add runs, or use --ridge 0.1 or --law transfer")


@one_thread()
def fit_runs(
    runs: Runs,
    law: str = "log-linear",
    *,
    test: Runs | None = None,
    folds: int | None = None,
    seed: int = 0,
    ridge: float = 0.0,
    step: Callable[[], None] = lambda: None,
) -> Fit:
    """Fit a law by name, or the best by cross-validation (`auto`), and measure it on runs it has not seen."""
    fold, how = split(runs.P, folds, seed)
    choices: list[Choice] = []
    notes = list(runs.notes)
    if not teaches(runs.L):
        notes.append("all runs have the same losses: there is nothing to learn from them; are these the right columns?")
    if law == "auto":
        law, choices, predicted, told = choose(runs, fold, how, step, ridge)
        notes += told
        fitted = create_law(law, ridge=ridge).fit(runs.P, runs.L, runs.weights)
    else:
        unfitted = create_law(law, ridge=ridge)
        if ridge > 0 and not hasattr(unfitted, "ridge"):
            raise ValueError(f"--ridge is for linear and log-linear; {law} does not need it")
        try:
            fitted = create_law(law, ridge=ridge).fit(runs.P, runs.L, runs.weights)
        except ValueError as error:
            raise ValueError(_by_name(str(error), runs.groups)) from None
        predicted = held_out(unfitted, runs, fold, step, notes)
    runs = replace(runs, notes=tuple(notes))
    scores = measure(runs.L, predicted, how)
    tested = None
    if test is not None:
        if set(test.groups) != set(runs.groups) or not set(runs.targets) <= set(test.targets):
            raise ValueError(
                f"the test table has groups {', '.join(test.groups)} and targets {', '.join(test.targets)}, which are "
                "not those of the table"
            )
        P = test.P[:, [test.groups.index(g) for g in runs.groups]]
        L = test.L[:, [test.targets.index(t) for t in runs.targets]]
        tested = measure(L, fitted.predict(P), "test table")
    troubles = diagnose(fitted, runs, scores.r2, predicted)
    return Fit(fitted, runs, scores, tested, tuple(troubles), tuple(choices), predicted)
