"""Studies of laws and parameters as tables, next to the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aioli.analysis.parameters import relation
from aioli.experiments import paper
from aioli.experiments.words import Block, beside, number, plural
from aioli.stats import interval


def laws(results: Mapping[str, Any]) -> list[Block]:
    """MSE and R², laws by settings."""
    name, settings = results["experiment"], results["settings"]
    names = list(dict.fromkeys(law for found in settings.values() for law in found["analysis"]["fits"]))
    rows = []
    for law in names:
        cells = []
        for setting, found in settings.items():
            fit = found["analysis"]["fits"].get(law)
            if fit is None:
                cells.append("")
                continue
            there = paper.value(name, "fits", law, setting)
            here = f"{number(np.mean, fit['mse'], '.1e')}, {number(np.mean, fit['r2'], '.3f')}"
            cells.append(beside(here, None if there is None else f"{there[0]:.0e}, {there[1]:.3f}"))
        rows.append([law, *cells])
    noise = {s: f["analysis"]["seed_noise"] for s, f in settings.items() if f["analysis"].get("seed_noise") is not None}
    words = [f"{s}: {value:.4f}" for s, value in noise.items()]
    found = [(["MSE, R²", *settings], rows)]
    return [
        *found,
        f"Noise of a loss, beyond what a seed shifts all mixtures by: {'; '.join(words)}." if words else "",
        *_by_task(settings),
    ]


def _by_task(settings: Mapping[str, Any]) -> list[Block]:
    """For many targets, R² of each."""
    blocks: list[Block] = []
    for found in settings.values():
        fits, targets = found["analysis"]["fits"], found["analysis"]["targets"]
        if len(targets) > 7:
            rows = [
                [t, *(number(np.mean, [fit["r2"][i]], ".3f") for fit in fits.values())] for i, t in enumerate(targets)
            ]
            blocks.append((["R² by target", *fits], rows))
    return blocks


def parameters(results: Mapping[str, Any]) -> list[Block]:
    """How close A is to A*, against what is gained, over all settings."""
    settings = results["settings"]
    points = [{**point, "setting": s} for s, found in settings.items() for point in found["analysis"]["points"]]
    means: list[dict[str, Any]] = []
    for method, setting in dict.fromkeys((str(p["method"]), str(p["setting"])) for p in points):
        mine = [p for p in points if (p["method"], p["setting"]) == (method, setting)]
        mean = {k: float(np.mean([p[k] for p in mine])) for k in ("similarity", "improvement")}
        means.append({"method": method, **mean})
    slope, r2 = relation(means)
    rows = []
    for method in dict.fromkeys(each["method"] for each in means):
        near, gains = ([each[k] for each in means if each["method"] == method] for k in ("similarity", "improvement"))
        low, high = interval(gains)
        rows.append(
            [method, f"{np.mean(near):+.2f}", f"{min(near):+.2f}", f"{np.mean(gains):+.3f} [{low:+.3f}, {high:+.3f}]"]
        )
    there = paper.printed()["parameters"]["r2"]
    words = (
        f"Perplexity gained against similarity, a point for each method and setting (means over seeds, {len(means)} "
        f"points): slope {slope:+.2f}, R² {r2:.2f} *({there})*. Intervals are over settings: {', '.join(settings)}."
    )
    return [(["method", "mean sim(A, A*)", "lowest", "perplexity gained"], rows), words]


def greedy(results: Mapping[str, Any]) -> list[Block]:
    """The greedy pair of mixtures against the best one."""
    rows, same = [], 0
    for setting, found in results["settings"].items():
        data = found["analysis"]
        same += bool(data["same"])
        for kind in ("greedy", "optimal"):
            i, j = data[kind]
            first = [data["mixtures"][k][0] for k in (i, j)]
            there = paper.value("greedy", kind, None, setting)
            rows.append(
                [
                    setting,
                    kind,
                    beside(f"{first[0]:.2f}, {first[1]:.2f}", None if there is None else f"{there[0]}, {there[1]}"),
                    f"{data['after_two'][i][j]:.4f}",
                    beside(f"{data['perplexity'][i][j]:.3f}", None if there is None else f"{there[2]:.3f}"),
                ]
            )
    header = ["setting", "solving", "first group's share in both rounds", "mean val loss", "mean test perplexity"]
    words = (
        f"Greedy finds the best pair in {same} of {plural(len(results['settings']), 'setting')} *(2 of 3)*; one seed."
    )
    return [(header, rows), words]


def told(results: Mapping[str, Any]) -> list[Block]:
    """What a study says itself."""
    blocks: list[Block] = []
    for setting, found in results["settings"].items():
        blocks.append(f"**{setting}**: {' '.join(found['words'])}")
        blocks += [(table["header"], table["rows"]) for table in found["tables"]]
    return blocks
