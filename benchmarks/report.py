"""How long Chromium takes to load a report on 100 runs: `python benchmarks/report.py` prints JSON.

Runs are tiny and trained here. The time is what the browser itself says: from the start of navigation to the end of the
load event, script included, the median of five loads of the same file.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from aioli.cli import main
from aioli.data import write_store
from aioli.methods import create
from aioli.recipe import build
from aioli.runs.conducting import Asked, Conductor
from aioli.runs.job import Setup
from aioli.runs.local import LocalExecutor
from aioli.runs.store import RunStore
from aioli.train.recipe import TrainRecipe

RUNS, LOADS = 100, 5


def trained(place: Path) -> RunStore:
    """A store of a hundred runs: forty with a method of many rounds, the others a sweep."""
    rng = np.random.default_rng(0)
    sizes = (("train", 20_000), ("val", 640), ("test", 640))
    splits = {split: {g: rng.integers(0, 40, size) for g in ("code", "books", "web")} for split, size in sizes}
    data = write_store(place / "data", splits, 16, 40)
    plain = {"data": str(data.path), "train": {"steps": 240, "batch": 4, "threads": 1}, "val": {"every": 10}}
    setup = Setup.of(build(TrainRecipe, plain))
    store, executor = RunStore(place / "runs"), LocalExecutor()
    asked = [Asked("aioli", create("aioli", rounds=20, k=1), setup.problem(seed)) for seed in range(40)]
    asked += [Asked("grid-search", create("grid-search"), setup.problem(seed)) for seed in range(6)]
    Conductor(store, executor, setup, setup).conduct(asked)
    executor.close()
    return store


def load_seconds(page: Path, browser: str, profile: Path) -> float:
    """Load the page once in a fresh browser."""
    code = "addEventListener('load', () => setTimeout(() => { const t = performance.getEntriesByType('navigation')[0]; "
    code += "document.title = t.loadEventEnd - t.startTime; }));"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"), count=1)
    copy = page.with_name("timed.html")
    copy.write_text(text.replace("</body>", f"<script>{code}</script></body>", 1), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--timeout=20000", "--dump-dom", f"file://{copy}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = re.search(r"<title>([\d.]+)</title>", done.stdout)
    assert found is not None, done.stderr
    return float(found[1]) / 1000


def run() -> dict[str, object]:
    """Train, report, load."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("this benchmark needs Chromium from the system's packages")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        store = trained(place)
        page = place / "report.html"
        assert main(["report", str(store.path), "-o", str(page)]) == 0
        seconds = [load_seconds(page, browser, place / "profile") for _ in range(LOADS)]
        count = len(list(store.keys()))
        return {"runs": count, "bytes": page.stat().st_size, "seconds": statistics.median(seconds), "all": seconds}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(), indent=1) + "\n")
