"""What a report says of runs next to each other: never a difference of seeds as if it were one of methods."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from aioli.report.law import law
from aioli.report.plots import heat
from aioli.report.runs import report, scored
from aioli.report.seen import Seen, sort
from aioli.report.svg import Series, lines
from aioli.report.text import columns_of
from aioli.report.trace import Trace

GROUPS = ["a", "b", "c"]


def seen(kind, seed, loss, p=None, looks=(), settings=None, steps=100):
    """A finished run; `p`: its fixed mixture."""
    name = f"{kind}-{seed}-{loss}"
    trace = Trace(Path(name))
    trace.about = {"groups": GROUPS, "targets": ["t"], "seed": seed, "steps": steps, "model": "tiny", "data": "d"}
    trace.about |= {"method": kind, "parameters": 1, "batch": 1, "context": 1, "aioli": "0"}
    realised = dict(zip(GROUPS, p or [1 / 3] * 3, strict=True))
    seconds = {"train": 1.0, "probe": 0.1, "evaluation": 0.1}
    trace.result = {"test": {"loss": {"t": loss}, "mean_loss": loss}, "realised": realised, "seconds": seconds}
    trace.step = steps
    for step, value in looks:
        trace.looks.add(step, [value])
    rules = {"type": "Static", "proportions": p} if p else {"type": "Online", **(settings or {})}
    return Seen(name, Path(name), trace, {"method": {"rules": rules}}, "", kind)


EVEN = [1 / 3] * 3


def test_order_is_by_paired_differences():
    """A run with an easy seed has the lowest loss, and is worse than stratified with that seed."""
    runs = [seen("static", seed, 5.0 - seed, EVEN) for seed in range(3)]
    runs += [seen("aioli", seed, 4.9 - seed) for seed in range(3)]
    runs.append(seen("static", 2, 3.05, [0.4, 0.3, 0.3]))
    [problem] = sort(runs)
    assert [score.method for score in scored(problem)] == ["aioli", "stratified", "static 0.4 0.3 0.3"]
    text = "".join(report([problem])[2])
    assert re.search(r"<tr class=best><td>aioli</td>", text)
    assert "Ordered by the difference from stratified with the same seeds" in text


def test_without_stratified_other_seeds_have_no_best():
    runs = [seen("aioli", 0, 5.0), seen("aioli-pooled", 1, 4.0)]
    [problem] = sort(runs)
    text = "".join(report([problem])[2])
    assert "class=best" not in text
    assert "their order may be that of the seeds" in text
    [problem] = sort([seen("aioli", 0, 5.0), seen("aioli-pooled", 0, 4.0)])
    assert re.search(r"<tr class=best><td>aioli-pooled</td>", "".join(report([problem])[2]))


def test_stratified_is_no_measure_for_seeds_it_does_not_have():
    """As in `aioli ui` when a comparison has begun: its first run has ended, others with another seed have too."""
    [problem] = sort([seen("static", 1, 5.0, EVEN), seen("aioli", 0, 3.0), seen("aioli-pooled", 0, 3.5)])
    assert [score.method for score in scored(problem)] == ["aioli", "aioli-pooled", "stratified"]
    text = "".join(report([problem])[2])
    assert "class=best" not in text
    assert "Ordered by" not in text


def test_curves_share_a_seed_and_the_axis_ends_with_the_run():
    path = [(10, 5.0), (90, 4.0)]
    runs = [seen("static", 0, 4.0, EVEN, path), seen("static", 1, 4.0, EVEN, path), seen("aioli", 1, 4.0, looks=path)]
    runs += [seen("aioli-pooled", 0, 4.0, looks=path), seen("aioli", 0, 4.0, looks=path)]
    [problem] = sort(runs)
    text = "".join(report([problem])[2])
    assert "all with seed 0" in text
    assert text.partition("How the loss fell")[2].partition("What it cost")[0].count("<polyline") == 3
    more = [seen("aioli-fork", 7, 4.0, looks=path, settings={"eta": eta}) for eta in range(5)]
    proxies = [seen("doge proxy", 1, 4.0, looks=path, settings={"eta": eta}) for eta in range(5)]
    [problem] = sort([*runs, *more, *proxies])
    text = "".join(report([problem])[2])
    assert "all with seed 0" in text  # one that stratified has
    assert "Without a run of that seed: aioli-fork (eta=0), aioli-fork (eta=1)" in text
    chart = lines([Series("x", [10, 90], [5, 4], "#000")], "step", "loss", 100)
    assert re.search(r">100</text>", chart)


def test_what_extra_runs_have_found_is_no_setting():
    """Skill-It has another graph with every seed, and is one method."""
    runs = [seen("skill-it", seed, 4.0, settings={"estimator": {"graph": [[seed, 1]]}}) for seed in range(3)]
    [problem] = sort(runs)
    assert list(problem.labels()) == ["skill-it"]
    known = [
        seen("skill-it", seed, 4.0, settings={"estimator": {"graph": [[k, 1]]}}) for k in (3, 4) for seed in (0, 1)
    ]
    [problem] = sort(known)  # somebody has given two graphs
    assert sorted(len(some) for some in problem.labels().values()) == [2, 2]
    runs = [seen("skill-it", 0, 4.0, settings={"solver": {"eta": eta}}) for eta in (0.1, 0.2)]
    [problem] = sort(runs)
    assert list(problem.labels()) == ["skill-it (eta=0.1)", "skill-it (eta=0.2)"]


def test_what_methods_end_with_comes_before_their_sweeps():
    sweep = [seen("static", k, 5.0, np.random.default_rng(k).dirichlet(np.ones(3)).tolist(), steps=5) for k in range(9)]
    proxies = [seen("doge proxy", seed, 5.0, steps=50) for seed in range(3)]
    final = [seen("aioli", 0, 4.0), seen("static", 0, 4.1, EVEN)]
    assert [problem.steps for problem in sort([*sweep, *proxies, *final])] == [100, 5, 50]


def test_a_law_is_not_learnt_from_one_mixture_many_times():
    rng = np.random.default_rng(0)
    near = [(np.array(EVEN) + 1e-4 * rng.normal(size=3)).tolist() for _ in range(9)]
    [problem] = sort([seen("static", k, 4.0 + 0.01 * k, p) for k, p in enumerate(near)])
    assert law(problem) == []
    border = [[0.125 + d, 0.125 - d, 0.75] for d in (1e-4 * rng.normal(size=14)).tolist()]
    [problem] = sort([seen("static", k, 4.0 + 0.01 * k, p) for k, p in enumerate(border)])
    assert law(problem) == []
    noise = [rng.dirichlet(np.ones(3)).tolist() for _ in range(12)]
    [problem] = sort([seen("static", k, 4.0 + rng.normal(), p) for k, p in enumerate(noise)])
    assert "What speaks against it" in "".join(law(problem))  # there is no law in noise


def test_what_was_not_tried_out_is_a_dash_that_a_slider_can_fill():
    chart = heat(["t"], GROUPS, [[-0.1, float("nan"), 0.2]], "A")
    assert chart.count("<rect") == 3
    assert re.search(r'data-cell="1"[^>]*>–</text>', chart)


@pytest.mark.parametrize(("text", "columns"), [("", 0), ("code", 4), ("数学", 4), ("é", 1)])
def test_how_wide_words_are(text, columns):
    assert columns_of(text) == columns


def test_names_of_curves_stay_above_the_axis():
    chart = lines([Series(f"n{k}", [0, 9], [5, 4 + k / 1000], "#000") for k in range(10)], "step", "loss")
    places = sorted(float(y) for y in re.findall(r'data-legend="\d" x="\d+" y="([\d.]+)"', chart))
    assert places[-1] <= 268
    assert all(b - a >= 13.9 for a, b in itertools.pairwise(places))
