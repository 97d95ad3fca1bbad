"""Do groups interact? Residuals of the linear dynamic law against products of shares (Appendix C.1.2, Figure 6)."""

from __future__ import annotations

import numpy as np
from scipy.special import stdtrit

from aioli.analysis.dynamic import Fork, dynamic_sweeps
from aioli.analysis.study import Analysis, Figure, Lab, Staged, Table
from aioli.fits.diagnose import f_test
from aioli.fits.diagnose import interactions as products
from aioli.report.plots import Cloud, clouds, simplex
from aioli.simplex import Array

LIMIT = 0.99
"""Of the residuals that the law's own assumptions lead to, so many lie within the limits."""
SHOWN = 4


def studentised(P: Array, y: Array) -> Array:
    """Externally studentised residuals of the regression of y on P: each by a noise estimated without its own run."""
    basis = np.linalg.qr(P)[0]
    residual = y - basis @ (basis.T @ y)
    leverage = np.clip((basis**2).sum(1), 0.0, 1.0 - 1e-9)
    freedom = len(y) - P.shape[1] - 1
    if freedom < 1:
        raise ValueError(f"{len(y)} runs of {P.shape[1]} groups leave no residuals to look at; use a larger --sweep")
    total = float(residual @ residual)
    others = np.maximum((total - residual**2 / (1.0 - leverage)) / freedom, 1e-300)
    return np.asarray(residual / np.sqrt(others * (1.0 - leverage)))


def interactions(lab: Lab) -> Staged:
    """Look for interactions, and test for them."""
    forks = yield from dynamic_sweeps(lab)
    groups, targets, P = lab.problem.groups, lab.targets, lab.mixtures()
    pairs = [(j, k) for j in range(len(groups)) for k in range(j + 1, len(groups))]
    freedom = len(P) - len(groups) - 1
    limit = float(stdtrit(freedom, 0.5 + LIMIT / 2)) if freedom > 0 else np.inf
    rows, tests = [], []
    residuals = np.stack([[studentised(P, f.L[:, i]) for i in range(len(targets))] for f in forks])  # (forks, n, runs)
    for f, fork in enumerate(forks):
        for i, target in enumerate(targets):
            found = f_test(fork.L[:, i], P, products(P)) or f_test(fork.L[:, i], P, (P**2).sum(1, keepdims=True))
            outside = int((np.abs(residuals[f, i]) > limit).sum())
            words = (
                ("–", "–")
                if found is None
                else (f"{found.F:.2f} ({found.terms}, {found.freedom})", f"{found.p_value:.3f}")
            )
            rows.append((fork.name, target, f"{fork.linear().r2_[i]:.3f}", *words, f"{outside} of {len(P)}"))
            tests.append(None if found is None else found.p_value)
    known = [p for p in tests if p is not None]
    few = sum(p < 0.01 / max(len(known), 1) for p in known)
    words = (
        f"An F-test asks whether products of shares explain what the linear law leaves over. Of {len(known)} tests "
        f"{few} say so at 1% (corrected for their number); {sum(p < 0.05 for p in known)} have p < 0.05, "
        f"{0.05 * len(known):.1f} would by chance.",
        f"Within ±{limit:.2f} lie {LIMIT:.0%} of the studentised residuals if the linear law holds.",
    )
    header = ("sweep", "target", "R² linear", "F (freedom)", "p", f"beyond {LIMIT:.0%} limits")
    data = {
        "setting": lab.setting,
        "targets": list(targets),
        "mixtures": P.tolist(),
        "sweeps": [f.name for f in forks],
        "residuals": residuals.tolist(),
        "limit": limit,
        "p_values": tests,
    }
    figures = _figures(lab, forks, residuals, limit, pairs)
    title = f"Interactions between groups: {lab.setting}"
    return Analysis(
        "interactions", title, words, (Table("Tests for interactions", header, tuple(rows)),), figures, data
    )


def _figures(
    lab: Lab, forks: list[Fork], residuals: Array, limit: float, pairs: list[tuple[int, int]]
) -> tuple[Figure, ...]:
    groups, P, target = lab.problem.groups, lab.mixtures(), lab.targets[0]
    shown = np.linspace(0, len(forks) - 1, min(SHOWN, len(forks))).round().astype(int)
    found = []
    if len(groups) == 3:
        for f in shown:
            points = [(p.tolist(), float(r)) for p, r in zip(P, residuals[f, 0], strict=True)]
            label = f"residuals of {target}, {forks[f].name}"
            caption = (
                f"Residuals of {target}, {forks[f].name}: orange above the law, blue below; the larger, the farther."
            )
            found.append(Figure(simplex(groups, None, points, None, label, 260.0), caption))
    panels = [
        Cloud(
            f"{groups[j]} × {groups[k]}",
            (P[:, j] * P[:, k]).tolist(),
            residuals[f, 0].tolist(),
            flats=(-limit, 0.0, limit),
            note=forks[f].name,
        )
        for j, k in pairs[:12]
        for f in (shown if len(pairs) <= 3 else shown[:1])
    ]
    caption = (
        f"Studentised residuals of {target} against products of shares; 1% lies beyond the outer lines by chance. "
        "A trend would be an interaction."
    )
    found.append(
        Figure(
            clouds(panels, "product of shares", "residual", columns=len(shown) if 1 < len(pairs) <= 3 else 4), caption
        )
    )
    return tuple(found)
