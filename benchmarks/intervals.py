"""How often the 95% intervals of `aioli solve` hold the truth, in worlds where it is known. JSON.

    python benchmarks/intervals.py [--worlds 40] [--resamples 60] [-o benchmarks/results/intervals.json]

For each law and size of table: intervals of the shares, of the chosen mixture's loss, and of what uniform would cost.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from aioli.fits import Runs, Wish, fit_runs, solve
from aioli.lmo import Direct, LinearStatic, LogLinearStatic, TransferPowerLaw

CASES = (
    ("linear", 6, 3),
    ("linear", 20, 5),
    ("log-linear", 6, 3),
    ("log-linear", 8, 3),
    ("log-linear", 20, 3),
    ("log-linear", 100, 8),
    ("transfer", 10, 5),
    ("transfer", 20, 3),
    ("transfer", 100, 8),
)
NOISE = 0.01


def truth(law: str, A: np.ndarray) -> LinearStatic | LogLinearStatic | TransferPowerLaw:
    """A world: every group helps its own target most."""
    m = len(A)
    if law == "transfer":
        found = TransferPowerLaw()
        found.A_, found.b_, found.c_, found.alpha_ = np.exp(A + 0.5), np.full(m, 1.5), np.full(m, 2.0), np.full(m, 0.5)
        return found
    plain = LinearStatic() if law == "linear" else LogLinearStatic()
    plain.A_, plain.b_, plain.c_ = A, np.ones(m), np.full(m, 2.0)
    return plain


def coverage(law: str, runs: int, m: int, worlds: int, resamples: int) -> dict[str, float]:
    held = np.zeros(3)
    for world in range(worlds):
        rng = np.random.default_rng([world, runs, m])
        P = rng.dirichlet(np.ones(m), runs)
        exact = truth(law, rng.normal(0, 0.5, (m, m)) + 1.5 * np.eye(m))
        L = exact.predict(P) + NOISE * rng.normal(size=(runs, m))
        table = Runs(tuple(f"g{j}" for j in range(m)), tuple(f"t{j}" for j in range(m)), P, L)
        found = solve(fit_runs(table, law), Wish.of(table), resamples)
        best, chosen = Direct().solve(exact).proportions, float(exact.predict(found.best.proportions).mean())
        low, high = found.compared["uniform"].interval or (0.0, 0.0)
        assert found.interval is not None
        assert found.loss_interval is not None
        held[0] += ((found.interval[:, 0] - 1e-9 <= best) & (best <= found.interval[:, 1] + 1e-9)).mean()
        held[1] += found.loss_interval[0] <= chosen <= found.loss_interval[1]
        held[2] += low <= float(exact.predict(np.full((1, m), 1 / m)).mean()) - chosen <= high
    return dict(zip(("shares", "loss", "uniform"), (held / worlds).round(3).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=40)
    parser.add_argument("--resamples", type=int, default=60)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    found = []
    for law, runs, m in CASES:
        held = coverage(law, runs, m, options.worlds, options.resamples)
        found.append({"law": law, "runs": runs, "groups": m, **held})
        print(json.dumps(found[-1]), flush=True)
    if options.out is not None:
        settings = {"worlds": options.worlds, "resamples": options.resamples, "noise": NOISE}
        options.out.write_text(json.dumps({**settings, "held": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
