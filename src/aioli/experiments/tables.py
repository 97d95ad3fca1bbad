"""Results as tables, next to the paper's: a setting for the terminal, everything as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aioli.experiments import comparisons, studies
from aioli.experiments.catalogue import EXPERIMENTS
from aioli.experiments.words import Block, cell, made_with

Results = Mapping[str, Any]
RENDER: dict[str, Callable[[Results], list[Block]]] = {
    "restricted": comparisons.restricted,
    "proportions": comparisons.proportions,
    "downstream": comparisons.downstream,
    "law-fit": studies.laws,
    "law-checkpoints": studies.laws,
    "law-instruction": studies.laws,
    "law-nonlinear": studies.laws,
    "parameters": studies.parameters,
    "a-star": studies.told,
    "greedy": studies.greedy,
}
"""How an experiment is shown; the others are differences from stratified."""
OVERVIEW = "overview"
HEAD = """# Results

Every number on this page was measured by `aioli reproduce` and stands in `{folder}`; the page is made from there by
`aioli reproduce --show`. *(In brackets: what the paper prints.)* Differences are paired by seed and come with 95%
intervals (Student's t over seeds), bold where they exclude zero. The small profile trains a model of one layer for
seconds, the paper Pythia-160M for hours on a GPU: perplexities cannot be compared, signs and orders can.

The **room** of a setting is what the best mixture of a static sweep (ten runs; two groups: nine mixtures) gains over
stratified, chosen on validation data with one seed and judged on test data with another. "No room": its interval covers
zero, so that none is shown, though there may be a little; methods are not ranked there.

No method was tuned here setting by setting, as the paper tuned Aioli, Skill-It and DoGE: all have their defaults, and
those of `aioli-pooled` and `aioli-fork` were chosen on other combinations of the same groups; what to try was suggested
by some of the settings below, and once they decided (docs/methods.md says which and when). Pieces of one document may
be in two splits, which favours training on a target's own group.
"""


def summary(name: str, setting: str, found: Mapping[str, Any]) -> tuple[str, list[str], list[list[str]], list[str]]:
    """One setting for people at a terminal: title, header, rows, notes."""
    title = f"{name}: {setting}"
    if "comparison" in found:
        return (title, *comparisons.one(name, setting, found))
    table = found["tables"][0]
    return title, list(table["header"]), [list(row) for row in table["rows"]], list(found["words"])


def markdown(
    results: Mapping[str, Results], folder: str = "results/mini", remarks: Mapping[str, str] | None = None
) -> str:
    """All results of a folder, with what somebody remarks on them, by experiment."""
    remarks = remarks or {}
    parts = [HEAD.format(folder=folder)]
    parts += [_block(block) for block in comparisons.overview(results)]
    parts += [remarks[OVERVIEW]] if OVERVIEW in remarks else []
    for name, found in results.items():
        experiment = EXPERIMENTS[name]
        shows = "ours" if experiment.shows == "–" else f"the paper's {experiment.shows}"
        parts.append(f"## {name}\n\n{experiment.about[0].upper()}{experiment.about[1:]} ({shows}). {made_with(found)}")
        blocks = RENDER.get(name, comparisons.differences)(found)
        parts += [_block(block) for block in blocks]
        parts += [remarks[name]] if name in remarks else []
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, str):
        return block
    header, rows = block
    lines = ["| " + " | ".join(map(cell, header)) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows)])
