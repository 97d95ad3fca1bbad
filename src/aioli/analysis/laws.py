"""Do the laws fit? Static and dynamic mixing laws over sweeps (Section 4.2, Appendix C.1, Figure 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aioli.analysis.dynamic import Fork, dynamic_sweeps
from aioli.analysis.study import Analysis, Figure, Lab, Staged, Table
from aioli.lmo import LinearStatic, LogLinearStatic, TransferPowerLaw
from aioli.report.plots import Cloud, clouds
from aioli.report.svg import colour
from aioli.simplex import Array

STATIC: dict[str, Callable[[], Any]] = {
    "log-linear static": LogLinearStatic,
    "linear static": LinearStatic,
    "transfer": TransferPowerLaw,
}


def laws(lab: Lab) -> Staged:
    """Fit every law to sweeps: static ones over all seeds, dynamic ones from forks of the first seed."""
    P, S = lab.mixtures(), lab.problem.steps
    results = yield [lab.seeded(seed).static(p, S) for seed in lab.seeds for p in P]
    L = np.stack([r.val_loss for r in results]).reshape(len(lab.seeds), len(P), -1)
    forks = yield from dynamic_sweeps(lab)
    fits: dict[str, tuple[Array, Array]] = {}
    for name, law in STATIC.items():
        each = [law().fit(P, losses) for losses in L]
        fits[name] = np.mean([f.mse_ for f in each], axis=0), np.mean([f.r2_ for f in each], axis=0)
    for t in dict.fromkeys(fork.t for fork in forks):
        here = [fork for fork in forks if fork.t == t]
        at = f", t = {t}" if len(lab.at) > 1 else ""
        for name, laws_here in (
            (f"linear dynamic{at}", [f.linear() for f in here]),
            (f"log-linear dynamic{at}", [f.loglinear() for f in here]),
        ):
            fits[name] = np.mean([f.mse_ for f in laws_here], axis=0), np.mean([f.r2_ for f in laws_here], axis=0)
    return _report(lab, L, forks, fits)


def _report(lab: Lab, L: Array, forks: list[Fork], fits: dict[str, tuple[Array, Array]]) -> Analysis:
    P, targets = lab.mixtures(), lab.targets
    header = ("law", "MSE", "R²", *(f"R² {target}" for target in targets))
    rows = tuple(
        (name, f"{mse.mean():.2g}", f"{r2.mean():.3f}", *(f"{v:.3f}" for v in r2)) for name, (mse, r2) in fits.items()
    )
    exact = len(P) <= lab.problem.m + 1
    noise = _noise(L)
    words = [
        f"{len(P)} mixtures; static: {len(L)} seed{'s' * (len(L) > 1)} of {lab.problem.steps} steps; dynamic: forks of "
        f"{lab.steps_ahead} steps from {len({f.name for f in forks})} parents, one seed."
    ]
    if exact:
        words.append(
            f"{len(P)} mixtures are no more than the log-linear law has parameters: its fit is exact and says nothing."
        )
    if noise is not None:
        words.append(
            f"Noise of a loss, beyond what a seed shifts all mixtures by: {noise:.2g}; an MSE below {noise**2:.1g} is "
            "as good as it gets."
        )
    data = {
        "setting": lab.setting,
        "targets": list(targets),
        "mixtures": P.tolist(),
        "fits": {n: {"mse": m.tolist(), "r2": r.tolist()} for n, (m, r) in fits.items()},
        "static_losses": L.tolist(),
        "seeds": list(lab.seeds),
        "seed_noise": noise,
        "forks": [
            {"p0": None if f.p0 is None else f.p0.tolist(), "t": f.t, "start": f.start.tolist(), "losses": f.L.tolist()}
            for f in forks
        ],
    }
    tables = (Table("Fit of mixing laws", header, rows),)
    return Analysis("laws", f"Mixing laws: {lab.setting}", tuple(words), tables, _figures(lab, L, forks), data)


def _noise(L: Array) -> float | None:
    """Of a loss (seeds, mixtures, targets), without what all mixtures of a seed share: a law's c takes it up."""
    seeds, mixtures, targets = L.shape
    if seeds < 2 or mixtures < 2:
        return None
    left = L - L.mean(0) - L.mean(1, keepdims=True) + L.mean((0, 1))
    return float(np.sqrt((left**2).sum() / ((seeds - 1) * (mixtures - 1) * targets)))


def _lines(forks: list[Fork], target: int, group: int) -> list[tuple[str, list[tuple[float, float]]]]:
    """The linear dynamic law of each sweep of two groups, over the shares that were swept."""
    found = []
    for k, fork in enumerate(forks):
        a = fork.A_star[target]
        ends = [float(fork.P[:, group].min()), float(fork.P[:, group].max())]
        found.append((colour(k), [(x, -float(a[group] * x + a[1 - group] * (1 - x))) for x in ends]))
    return found


def _figures(lab: Lab, L: Array, forks: list[Fork]) -> tuple[Figure, ...]:
    """Figure 2: own share against log(L - c), and against the loss after a fork."""
    P, m = lab.mixtures(), lab.problem.m
    own = [lab.problem.groups.index(t) if t in lab.problem.groups else None for t in lab.targets]
    left, right = [], []
    for i, target in enumerate(lab.targets):
        x_of = own[i] or 0
        law = LogLinearStatic().fit(P, L[:, :, i].mean(0))
        above = np.log(np.maximum(L[:, :, i] - law.c_[0], 1e-12))
        inks = [colour(k) for k in range(len(L)) for _ in P]
        curve = []
        if m == 2:
            grid = np.linspace(0.02, 0.98, 49)
            Q = np.stack([grid, 1 - grid], 1) if x_of == 0 else np.stack([1 - grid, grid], 1)
            curve = list(zip(grid.tolist(), (-(Q @ law.A_[0])).tolist(), strict=True))
        shares = np.tile(P[:, x_of], len(L))
        left.append(Cloud(target, shares.tolist(), above.ravel().tolist(), curve, colours=inks))
        here = [f for f in forks if f.t == forks[0].t]
        inks = [colour(k) for k in range(len(here)) for _ in P]
        right.append(
            Cloud(
                target,
                np.tile(P[:, x_of], len(here)).tolist(),
                np.concatenate([f.L[:, i] - f.start[i] for f in here]).tolist(),
                curves=_lines(here, i, x_of) if m == 2 else (),
                colours=inks,
            )
        )
    group = "own share" if all(o is not None for o in own) else f"share of {lab.problem.groups[0]}"
    return (
        Figure(
            clouds(left, group, "log(loss − c)"),
            "Static: log(L − c) against the share; for two groups the log-linear law is a line. Colours: seeds.",
        ),
        Figure(
            clouds(right, group, "change of loss"),
            f"Dynamic: change of the loss over {lab.steps_ahead} steps against the share in them. Colours: initial p⁰; "
            "lines: the linear law.",
        ),
    )
