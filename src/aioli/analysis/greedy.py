"""Is it enough to be greedy? All pairs of mixtures in two rounds, against the best one at a time (Section 4.4)."""

from __future__ import annotations

import numpy as np

from aioli.analysis.study import Analysis, Figure, Lab, Staged, Table, names, perplexity
from aioli.policies import Static
from aioli.report.plots import heat


def greedy(lab: Lab) -> Staged:
    """Train every pair (p¹, p²) for half the steps each; greedy takes the best p¹, then the best p² after it."""
    P, problem = lab.mixtures(), lab.problem
    half = problem.steps // 2
    first = [problem.static(p, half) for p in P]
    second = [problem.run(Static(tuple(q.tolist())), problem.steps - half, parent=run) for run in first for q in P]
    results = yield [*first, *second]
    weights = problem.task(problem.steps).weights
    after_one = np.array([r.val_loss @ weights for r in results[: len(P)]]) / problem.n
    last = results[len(P) :]
    after_two = np.array([r.val_loss @ weights for r in last]).reshape(len(P), len(P)) / problem.n
    shown = perplexity(last).reshape(len(P), len(P))
    one = int(np.argmin(after_one))
    two = int(np.argmin(after_two[one]))
    i, j = (int(k) for k in np.unravel_index(int(np.argmin(after_two)), after_two.shape))
    s = int(np.argmin(np.diag(after_two)))
    same = (one, two) == (i, j)
    rows = tuple(
        (name, names(P[a]), names(P[b]), f"{after_two[a, b]:.4f}", f"{shown[a, b]:.3f}")
        for name, a, b in (("greedy", one, two), ("optimal", i, j), ("best static", s, s))
    )
    lost = after_two[one, two] - after_two[i, j]
    words = (
        f"{len(first) + len(second)} runs of {half} steps, one seed; selected by validation loss, as the methods are.",
        "Greedy finds the optimal pair." if same else f"Greedy loses {lost:.4f} of mean loss to the optimal pair.",
    )
    labels = [names(p) if problem.m > 2 else f"{p[0]:.2g}" for p in P]
    chart = heat(labels, labels, (after_two - after_two.min()).tolist(), "loss above the best pair")
    caption = (
        f"Mean validation loss above the best pair: rows p¹, columns p² ({problem.groups[0]}'s share if two groups)."
    )
    table = Table("Two rounds", ("solving", "p¹", "p²", "mean val loss", "mean test perplexity"), rows)
    data = {
        "setting": lab.setting,
        "mixtures": P.tolist(),
        "after_one": after_one.tolist(),
        "after_two": after_two.tolist(),
        "perplexity": shown.tolist(),
        "greedy": [one, two],
        "optimal": [i, j],
        "same": same,
    }
    return Analysis(
        "greedy", f"Greedy against optimal: {lab.setting}", words, (table,), (Figure(chart, caption),), data
    )
