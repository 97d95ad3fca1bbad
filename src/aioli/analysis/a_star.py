"""Properties of A^{t*}: does its order change over time, and is a diagonal enough? (Appendix C.2.1)"""

from __future__ import annotations

import numpy as np

from aioli.analysis.dynamic import dynamic_sweeps
from aioli.analysis.study import Analysis, Figure, Lab, Staged, Table, names
from aioli.lmo import column_sums, similarity
from aioli.report.plots import heat


def a_star(lab: Lab) -> Staged:
    """Fit A* from every p⁰ at every time, in full and as a diagonal, and compare orders of column sums."""
    forks = yield from dynamic_sweeps(lab)
    groups = lab.problem.groups
    square = lab.problem.targets is None
    rows, data = [], []
    for fork in forks:
        A = fork.A_star
        diagonal = fork.linear(diagonal=True).A_ if square else None
        pull = column_sums(A)
        entry = {
            "t": fork.t,
            "p0": None if fork.p0 is None else fork.p0.tolist(),
            "A": A.tolist(),
            "pull": pull.tolist(),
        }
        cells = [names(fork.p0) if fork.p0 is not None else "", str(fork.t), groups[int(np.argmax(pull))]]
        cells.append(", ".join(f"{v:.3g}" for v in pull))
        if diagonal is not None:
            own = np.diag(diagonal)
            cells += [groups[int(np.argmax(own))], f"{similarity(diagonal, A):.2f}"]
            entry |= {"diagonal": own.tolist(), "similarity": similarity(diagonal, A)}
        rows.append(tuple(cells))
        data.append(entry)
    changed, compared = 0, 0
    for p0 in {tuple(e["p0"] or ()) for e in data}:
        orders = [tuple(np.argsort(e["pull"])) for e in data if tuple(e["p0"] or ()) == p0]
        compared += len(orders) > 1
        changed += len(set(orders)) > 1
    words = []
    if compared:
        words.append(f"The order of the column sums changes over time from {changed} of {compared} initial mixtures.")
    if square:
        differ = sum(tuple(np.argsort(e["pull"])) != tuple(np.argsort(e["diagonal"])) for e in data)
        words.append(f"A diagonal A* would order the groups otherwise in {differ} of {len(data)} sweeps.")
    header = ["p⁰", "t", "largest pull", "column sums of A*"]
    header += ["largest of the diagonal", "similarity to A*"] if square else []
    middle = len(lab.origins()) // 2
    figures = tuple(
        Figure(
            heat(lab.targets, groups, (-fork.A_star).tolist(), f"A* at {fork.name}"),
            f"−A* at {fork.name}: change of each target's loss (rows) over {lab.steps_ahead} steps on one group "
            "(columns). Blue: it falls.",
        )
        for k, fork in enumerate(forks)
        if k % len(lab.origins()) == middle
    )
    title = f"Properties of A*: {lab.setting}"
    table = Table("A* by initial mixture and time", tuple(header), tuple(rows))
    plain = {"setting": lab.setting, "targets": list(lab.targets), "groups": list(groups), "fits": data}
    return Analysis("a-star", title, tuple(words), (table,), figures, plain)
