"""How fast laws are fitted, next to a multi-start L-BFGS fit of the same law with PyTorch's autograd. One run, JSON.

    python benchmarks/laws.py                                 512 runs, 17 groups, 13 targets of a known world
    python benchmarks/laws.py mixtures.csv losses.csv         your own tables (joined by a common column)

Both minimise the same Huber loss; what each reaches is reported next to the time it took. Times are ratios within this
run: the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from aioli.fits import read_runs
from aioli.lmo import LogLinearStatic, TransferPowerLaw

RUNS, GROUPS, TARGETS, NOISE = 512, 17, 13, 0.02


def world(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A table of runs that a log-linear law has made: mixtures with many small shares, as in RegMix's."""
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(GROUPS, 0.3), RUNS)
    A = rng.normal(0.0, 0.4, (TARGETS, GROUPS)) + 1.5 * np.eye(TARGETS, GROUPS)
    L = rng.uniform(2, 4, TARGETS) + np.exp(-P @ A.T)
    return P, L + NOISE * rng.normal(size=L.shape)


def huber(residual: np.ndarray, delta: float) -> float:
    size = np.abs(residual)
    return float(np.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta)).sum())


def lbfgs(P: np.ndarray, L: np.ndarray, delta: float, starts: int, seed: int = 0) -> float:
    """The sum over targets of the lowest Huber loss over several starts of L-BFGS with strong Wolfe line search."""
    import torch

    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(seed)
    X, total = torch.tensor(P), 0.0
    for i in range(L.shape[1]):
        y, best = torch.tensor(L[:, i]), float("inf")
        for _ in range(starts):
            c = (y.min() * torch.rand(1, generator=generator)).requires_grad_()
            b = torch.randn(1, generator=generator).requires_grad_()  # the logarithm of b
            a = torch.randn(P.shape[1], generator=generator).requires_grad_()
            optimizer = torch.optim.LBFGS([c, b, a], lr=1, max_iter=500, history_size=20, line_search_fn="strong_wolfe")

            def closure(c=c, b=b, a=a, y=y, optimizer=optimizer):
                optimizer.zero_grad()
                predicted = c + torch.exp(b - X @ a)
                loss = torch.nn.functional.huber_loss(predicted, y, reduction="sum", delta=delta)
                loss.backward()
                return loss

            optimizer.step(closure)
            with torch.no_grad():
                loss = float(torch.nn.functional.huber_loss(c + torch.exp(b - X @ a), y, reduction="sum", delta=delta))
            if np.isfinite(loss):
                best = min(best, loss)
        total += best
    return total


def command_line(P: np.ndarray, L: np.ndarray) -> float:
    """Seconds of `aioli fit` on these tables, with imports, cross-validation and printing."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "runs.csv"
        header = [f"p_{j}" for j in range(P.shape[1])] + [f"loss_{i}" for i in range(L.shape[1])]
        rows = [",".join(map(repr, row)) for row in np.concatenate([P, L], axis=1).tolist()]
        table.write_text("\n".join([",".join(header), *rows]))
        order = [sys.executable, "-m", "aioli", "fit", str(table), "--proportions", "p_*", "--losses", "loss_*"]
        began = time.perf_counter()
        subprocess.run(order, check=True, capture_output=True)
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help="mixtures and losses; left out: a known world")
    parser.add_argument("--proportions", help="columns of proportions")
    parser.add_argument("--losses", help="columns of losses")
    parser.add_argument("--starts", type=int, default=10, help="starts of L-BFGS (default 10)")
    parser.add_argument("-o", "--out", type=Path, help="also write the JSON here")
    options = parser.parse_args()
    if options.tables:
        runs = read_runs(options.tables, options.proportions, options.losses)
        P, L = runs.P, runs.L
    else:
        P, L = world()
    delta = 0.02
    LogLinearStatic(huber=delta).fit(P[:50], L[:50])  # warm up
    times, reached = [], 0.0
    for _ in range(5):
        began = time.perf_counter()
        law = LogLinearStatic(huber=delta).fit(P, L)
        times.append(time.perf_counter() - began)
        reached = huber(L - law.predict(P), delta)
    ours = float(np.median(times))
    began = time.perf_counter()
    theirs_reached = lbfgs(P, L, delta, options.starts)
    theirs = time.perf_counter() - began
    began = time.perf_counter()
    TransferPowerLaw(4).fit(P, L)
    transfer = time.perf_counter() - began
    found = {
        "table": {"runs": len(P), "groups": P.shape[1], "targets": L.shape[1]},
        "ours": {"seconds": round(ours, 4), "huber": reached},
        "lbfgs": {"starts": options.starts, "seconds": round(theirs, 2), "huber": theirs_reached},
        "times_faster": round(theirs / ours, 1),
        "times_faster_than_one_start": round(theirs / options.starts / ours, 1),
        "lower_or_equal": bool(reached <= theirs_reached * (1 + 1e-6)),
        "transfer_4_terms_seconds": round(transfer, 2),
        "aioli_fit_seconds": round(command_line(P, L), 2),
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
