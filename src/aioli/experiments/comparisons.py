"""Comparisons of methods as tables: differences from stratified, the room and what is closed of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aioli.experiments import paper
from aioli.experiments.profiles import OURS
from aioli.experiments.words import Block, beside, mixture, percent, plural, signed
from aioli.runs.comparison import BASE
from aioli.stats import interval


def scores(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """By method."""
    return {score["method"]: score for score in found["comparison"]["scores"]}


def _printed(name: str, method: str, setting: str) -> float | None:
    """The paper's difference from stratified."""
    if method == BASE:
        return None
    direct = paper.value(name, "differences", method, setting)
    if direct is not None:
        return float(direct)
    whole, base = paper.value(name, "perplexities", method, setting), paper.value(name, "stratified", None, setting)
    return None if whole is None else float(whole) - float(base)


def _difference(name: str, setting: str, method: str, score: Mapping[str, Any]) -> str:
    if method == BASE:
        there = paper.value(name, "stratified", None, setting)
        return "–" if score["perplexity"] is None else beside(f"{score['perplexity']:.2f}", there and f"{there:.2f}")
    there = _printed(name, method, setting)
    return beside(signed(score["difference"], score["interval"]), None if there is None else f"{there:+.2f}")


def one(name: str, setting: str, found: Mapping[str, Any]) -> tuple[list[str], list[list[str]], list[str]]:
    """A setting for a terminal: header, rows, notes."""
    ranked = found.get("ranked") or {}
    header = ["method", "perplexity", "vs stratified", "the paper's", "mean loss", "room closed", "extra runs", "looks"]
    rows = []
    for method, score in scores(found).items():
        if score["perplexity"] is None:
            rows.append([method, "failed", *[""] * 6])
            continue
        there, closed = _printed(name, method, setting), ranked.get("methods", {}).get(method, {})
        rows.append(
            [
                method,
                f"{score['perplexity']:.3f}",
                "" if method == BASE else signed(score["difference"], score["interval"], 3).replace("**", ""),
                "" if there is None else f"{there:+.3f}",
                f"{score['loss']:.4f}",
                percent(closed["closed"], closed.get("closed_interval")) if "closed" in closed else "",
                f"{score['extra_runs']:g}",
                "" if score.get("probing") is None else f"{score['probing']:.0%}",
            ]
        )
    return header, rows, [room_words(ranked["room"])] if ranked else []


def room_words(room: Mapping[str, Any]) -> str:
    """The room of a setting in a sentence."""
    if len(room["gains"]) < 2:
        return f"room: {room['mean']:+.4f} of mean loss with one seed, so it is not known whether there is any"
    text = f"room: {signed(room['mean'], room['interval'], 4).replace('**', '')} of mean loss"
    return text if room["there"] else f"{text}: no room, so methods are not ranked"


def differences(results: Mapping[str, Any]) -> list[Block]:
    """Test perplexity minus stratified's, methods by settings; then the room."""
    name, settings = results["experiment"], results["settings"]
    methods = list(dict.fromkeys(m for found in settings.values() for m in scores(found)))
    header = ["mean test perplexity, minus stratified's", *settings]
    rows = []
    for method in methods:
        cells = [
            _difference(name, s, method, scores(f)[method]) if method in scores(f) else "" for s, f in settings.items()
        ]
        rows.append([method, *cells])
    blocks: list[Block] = [(header, rows), _agreement(name, settings), looks(settings)]
    if any(found.get("ranked") for found in settings.values()):
        blocks.append(rooms(settings))
    return [block for block in blocks if block]


def rooms(settings: Mapping[str, Any]) -> Block:
    """How much there is to win in each setting, and who wins how much of it."""
    every = dict.fromkeys(m for f in settings.values() for m in (f.get("ranked") or {}).get("methods", ()))
    methods = [m for m in every if m not in (BASE, "grid-search")]
    longer = next((found["longer"]["share"] for found in settings.values() if found.get("longer")), None)
    more = [] if longer is None else [f"stratified, {longer:.0%} more steps: gain"]
    header = ["mean test loss", "stratified", "room", *more, *(f"{m}: gain, room closed" for m in methods)]
    rows = []
    for setting, found in settings.items():
        if not found.get("ranked"):
            continue
        room, here = found["ranked"]["room"], found["ranked"]["methods"]
        words = signed(room["mean"], room["interval"], 4) + ("" if room["there"] else " no room")
        cells = [_bought(found)] if more else []
        cells += [_gained(here.get(method)) for method in methods]
        rows.append([setting, f"{scores(found)[BASE]['loss']:.4f}", words, *cells])
    return header, rows


def _verdicts(settings: Mapping[str, Any], method: str) -> tuple[int, int, int]:
    """In how many settings a method is surely better, surely worse, and how many there are."""
    spans = [scores(f)[method]["interval"] for f in settings.values() if method in scores(f)]
    known = [span for span in spans if span is not None]
    return sum(span[1] < 0 for span in known), sum(span[0] > 0 for span in known), len(known)


def _agreement(name: str, settings: Mapping[str, Any]) -> str:
    """What of the paper's signs is seen here, in words."""
    lines = []
    for method in dict.fromkeys(m for f in settings.values() for m in scores(f) if m != BASE):
        better, worse, count = _verdicts(settings, method)
        if not count:
            continue
        there = [_printed(name, method, s) for s in settings]
        known = [value for value in there if value is not None]
        text = f"{method}: interval below zero in {better}, above zero in {worse} of {plural(count, 'setting')}"
        if known:
            text += f" (the paper: better in {sum(v < 0 for v in known)} of {len(known)})"
        lines.append(f"- {text}")
    if len(lines) > 2:
        lines.append("- of forty intervals about a method that is no better, about one lies below zero by luck")
    return "\n".join(lines)


def restricted(results: Mapping[str, Any]) -> list[Block]:
    """What adding Aioli changes: perplexity of Aioli + method, minus that of the method."""
    name, settings = results["experiment"], results["settings"]
    added = [m for m in dict.fromkeys(m for f in settings.values() for m in scores(f)) if m.startswith("aioli+")]
    rows, better, sure, count, wins = [], 0, 0, 0, 0
    for method in added:
        base, cells = method.removeprefix("aioli+"), []
        for setting, found in settings.items():
            gains = _paired(found, method, base)
            span = interval(gains) if len(gains) > 1 else None
            mean = float(np.mean(gains)) if gains else None
            count, better = count + (mean is not None), better + (mean is not None and mean < 0)
            sure += span is not None and span[1] < 0
            there = [paper.value(name, "perplexities", m, setting) for m in (method, base)]
            known = None if None in there else there[0] - there[1]
            wins += known is not None and known < 0
            cells.append(beside(signed(mean, span), None if known is None else f"{known:+.2f}"))
        rows.append([method, *cells])
    words = (
        f"Adding Aioli lowers the mean perplexity in {better} of {count} cases ({sure} intervals below zero); in "
        f"the paper in {wins} of these."
    )
    return [(["perplexity of Aioli + method, minus the method's", *settings], rows), words, *differences(results)]


def _paired(found: Mapping[str, Any], method: str, base: str) -> list[float]:
    """Differences in perplexity by seed."""
    known = scores(found)
    if method not in known or base not in known:
        return []
    before = {row["seed"]: row["perplexity"] for row in known[base]["rows"]}
    return [r["perplexity"] - before[r["seed"]] for r in known[method]["rows"] if r["seed"] in before]


def proportions(results: Mapping[str, Any]) -> list[Block]:
    """Mixtures that were trained on, means over seeds."""
    rows = []
    for setting, found in results["settings"].items():
        for method, score in scores(found).items():
            if method == BASE or not score["rows"]:
                continue
            mean = np.mean([[r["proportions"][g] for g in found["groups"]] for r in score["rows"]], axis=0)
            there = paper.value("proportions", "proportions", method, setting)
            rows.append([setting, method, mixture(mean), "" if there is None else mixture(there)])
    blocks: list[Block] = [(["setting", "method", "mean mixture here", "the paper's (one seed)"], rows)]
    paths = []
    for setting, found in results["settings"].items():
        for method, path in found.get("trajectories", {}).items():
            places = [round(share * (len(path["steps"]) - 1)) for share in (0, 0.25, 0.5, 0.75, 1)]
            paths.append([setting, method, *(mixture(path["proportions"][k]) for k in places)])
    if paths:
        blocks.append((["mixtures over time, first seed", "method", "begin", "1/4", "1/2", "3/4", "end"], paths))
    return blocks


def downstream(results: Mapping[str, Any]) -> list[Block]:
    """Accuracy at tasks, and whether it goes with perplexity."""
    blocks: list[Block] = []
    for setting, found in results["settings"].items():
        accuracy, known = found["downstream"], scores(found)
        if not accuracy:
            continue
        tasks = list(next(iter(next(iter(accuracy.values())).values())))
        rows, pairs = [], []
        for method, seeds in accuracy.items():
            mean = {task: float(np.mean([each[task] for each in seeds.values()])) for task in tasks}
            there = paper.value("downstream", "averages", method, setting)
            average = beside(f"{np.mean(list(mean.values())):.3f}", None if there is None else f"{there:.3f}")
            rows.append([method, average, *(f"{mean[task]:.3f}" for task in tasks)])
            perplexity = {str(row["seed"]): row["perplexity"] for row in known[method]["rows"]}
            pairs += [(perplexity[s], np.mean(list(each.values()))) for s, each in seeds.items() if s in perplexity]
        blocks.append((["accuracy", "mean", *tasks], rows))
        if len(pairs) > 2:
            r = float(np.corrcoef(np.array(pairs).T)[0, 1])
            blocks.append(
                f"Correlation of perplexity and mean accuracy over {len(pairs)} models: {r:+.2f} *(+0.529, over eight "
                "other tasks)*; negative means that lower perplexity goes with better answers."
            )
    return blocks


def overview(results: Mapping[str, Mapping[str, Any]]) -> list[Block]:
    """The question that matters first: where there is room, does Aioli take it; where there is none, does it harm?"""
    rows: list[list[str]] = []
    harm: dict[str, dict[int, list[float]]] = {method: {} for method in OURS}
    for name in ("ood", "room", "unrestricted"):
        for setting, found in results.get(name, {"settings": {}})["settings"].items():
            if not found.get("ranked"):
                continue
            room, here = found["ranked"]["room"], found["ranked"]["methods"]
            methods = ("aioli-ood" if name == "ood" else "aioli", *OURS)
            there = signed(room["mean"], room["interval"], 4) + ("" if room["there"] else " no room")
            rows.append([f"{name}: {setting}", there, *(_gained(here.get(method)) for method in methods)])
            for method in OURS if name == "unrestricted" else ():
                for seed, share in _lost(found, method).items():
                    harm[method].setdefault(seed, []).append(share)
    if not rows:
        return []
    header = [
        "gain in mean test loss over stratified",
        "room (ten extra runs)",
        "Aioli as in the paper, not tuned",
        *OURS,
    ]
    return ["## Where there is room", (header, rows), *(_harm(method, lost) for method, lost in harm.items() if lost)]


def _bought(found: Mapping[str, Any]) -> str:
    """What stratified gains by being trained longer."""
    losses = {int(seed): loss for seed, loss in (found.get("longer") or {}).get("losses", {}).items()}
    gains = [row["loss"] - losses[row["seed"]] for row in scores(found)[BASE]["rows"] if row["seed"] in losses]
    return signed(float(np.mean(gains)), interval(gains) if len(gains) > 1 else None, 4) if gains else ""


def _gained(entry: Mapping[str, Any] | None) -> str:
    """What a method gains, and the share of the room that is."""
    if entry is None:
        return ""
    closed = f"; {percent(entry['closed'], entry['closed_interval'])}" if "closed" in entry else ""
    return signed(entry["gain"], entry["interval"], 4) + closed


def _harm(method: str, lost: Mapping[int, list[float]]) -> str:
    """How far from stratified a method is in-domain, on average over settings."""
    most = max(map(len, lost.values()))
    means = [float(np.mean(shares)) for shares in lost.values() if len(shares) == most]
    words = f"In-domain, {method}'s mean loss is {np.mean(means):+.2%} from stratified's, averaged over "
    if len(means) == 1:
        return f"{words}{plural(most, 'setting')} (one seed)."
    low, high = interval(means)
    return (
        f"{words}{plural(most, 'setting')} (95% interval over {plural(len(means), 'seed')} {low:+.2%} to {high:+.2%})."
    )


def _lost(found: Mapping[str, Any], method: str) -> dict[int, float]:
    """By seed: how much more loss than stratified, as a share of stratified's."""
    known = scores(found)
    base = {row["seed"]: row["loss"] for row in known[BASE]["rows"]}
    rows = known[method]["rows"] if method in known else ()
    return {row["seed"]: row["loss"] / base[row["seed"]] - 1 for row in rows if row["seed"] in base}


def looks(settings: Mapping[str, Any]) -> str:
    """What looking at validation losses took, in words."""
    shares: dict[str, list[float]] = {}
    for found in settings.values():
        for method, score in scores(found).items():
            if score.get("probing"):
                shares.setdefault(method, []).append(score["probing"])
    told = [
        f"{m} {min(v):.0%}" + (f" to {max(v):.0%}" if f"{min(v):.0%}" != f"{max(v):.0%}" else "")
        for m, v in shares.items()
    ]
    return f"Looks at losses, on top of training, with those for the journal: {', '.join(told)}." if told else ""
