"""Side by side with what one would pick instead: python benchmarks/peers.py [-o results/peers.json]

The same small job (three groups, one model, one optimizer, the same steps) through `aioli train`, aioli in other
people's loops, `datasets.interleave_datasets` and fms-acceleration-odm in Hugging Face's Trainer, and DoGE and DoReMi
written by hand. Every contestant runs in a process of its own, in the environment that it needs (--bench names the
Python of the other one, which `make peers` installs), with one thread. Runs are timed in turns, a piece at a time, so
that a busy machine slows all alike; times are divided by those of a bare loop in the same environment. Before that,
every contestant that can is killed in the middle and gone on with, and has its mixture changed in the middle of a run.
One that is not installed or fails is reported with the reason. `--show results/peers.json` makes docs/peers.md of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from contest import BARE, CONTESTANTS, measuring, page
from contest.contender import Contender, FailedError
from contest.job import ROWS, SHAPE, Job

ROOT = Path(__file__).resolve().parent.parent
LEAST, MOST = 2, 6
"""How often every contestant is timed."""
SWITCH_STEPS, SWITCH, KILLED = 20, 8, 3
"""Steps of the runs whose mixture is changed, the step after which it is, and steps from a checkpoint to a kill."""


# ---------------------------------------------------------------------- what is measured


def timed(contenders: dict[str, Contender], job: Job, until: float, failed: dict[str, str]) -> dict[str, Any]:
    """Whole runs in turns, as many as there is time for: seconds by run and piece, and memory after the first run."""
    seconds: dict[str, Any] = {name: {"wall": [], "cpu": []} for name in contenders}
    order = random.Random(job.seed)
    for run in range(MOST):
        began = time.perf_counter()
        each(contenders, failed, lambda c, run=run: (c.order(f"run{run}", timed=True), c.answer()))
        for name in contenders:
            for clock in ("wall", "cpu"):
                seconds[name][clock].append([])
        for piece in range(job.pieces):

            def turn(contender: Contender, warms_up: bool = piece == 0) -> None:
                contender.say("go")
                took = contender.answer()
                if not warms_up:
                    for clock in ("wall", "cpu"):
                        seconds[contender.name][clock][-1].append(took[clock])

            names = order.sample(list(contenders), len(contenders))
            each({name: contenders[name] for name in names}, failed, turn, contenders)

        def end(contender: Contender) -> None:
            contender.say("go")
            seconds[contender.name].setdefault("peak", contender.answer()["peak"])

        each(contenders, failed, end)
        if run + 1 >= LEAST and 2 * time.perf_counter() - began > until:  # another one would end too late
            break
    return {name: seconds[name] for name in contenders}


def each(
    some: dict[str, Contender],
    failed: dict[str, str],
    action: Callable[[Contender], object],
    everyone: dict[str, Contender] | None = None,
) -> None:
    """One after the other; who fails is left out from then on, with the reason."""
    everyone = some if everyone is None else everyone
    for name in list(some):
        try:
            action(some[name])
        except FailedError as error:
            failed[name] = str(error)
            everyone.pop(name).close()


def resuming(contender: Contender, job: Job) -> dict[str, Any]:
    """Killed some steps after a checkpoint in the middle, and gone on with in another process."""
    save = job.steps // 2
    try:
        contender.alone("resumed", save=save, die=save + KILLED)
        return {"failed": "it was to be killed, and went on"}
    except FailedError as error:
        if not str(error).endswith(" -9"):
            return {"failed": str(error)}
    try:
        return {"rest": contender.alone("resumed", save=save, resume=True)}
    except FailedError as error:
        return {"failed": str(error)}


def switching(contender: Contender, workers: int) -> dict[str, Any]:
    """All weight on one group, then all on another."""
    job = {"steps": SWITCH_STEPS, "pieces": 1, "warmup": 1}
    try:
        record = contender.alone(f"switched-{workers}", job=job, switch=SWITCH, workers=workers)
        return {"workers": workers, **measuring.stale(record["consumed"], SWITCH)}
    except FailedError as error:
        return {"workers": workers, "failed": str(error)}


def examined(contender: Contender, job: Job) -> dict[str, Any]:
    """What is not timed."""
    contestant, found = CONTESTANTS[contender.name], {}
    if contestant.resumes:
        found["resume"] = resuming(contender, job)
    if contestant.switches:
        found["switch"] = [switching(contender, workers) for workers in contestant.switches]
    return found


# ---------------------------------------------------------------------- all of it


def begin(names: Iterable[str], pythons: dict[str, str], job: Job, place: Path) -> tuple[dict[str, Contender], Any]:
    """The processes of all contestants that can take part, what they said, and why the others cannot."""
    file, begun, said, failed = job.save(), {}, {}, {}
    for name in names:
        python = pythons[CONTESTANTS[name].environment]
        if shutil.which(python) is None:
            failed[name] = "its environment is not installed; make peers does that"
            continue
        begun[name] = Contender(name, python, file, place / name)
    each(begun, failed, lambda contender: said.update({contender.name: contender.answer()}))
    return begun, (said, failed)


def measure(names: list[str], pythons: dict[str, str], place: Path, steps: int, minutes: float) -> dict[str, Any]:
    """Everything, as plain data."""
    from contest.preparing import prepare  # what shows a result needs neither torch nor aioli

    began = time.perf_counter()
    job = prepare(place, steps)
    contenders, (said, failed) = begin(names, pythons, job, place)
    with ThreadPoolExecutor(2) as pool:  # nothing is timed yet
        extra = dict(zip(contenders, pool.map(lambda c: examined(c, job), contenders.values()), strict=True))
    seconds = timed(contenders, job, began + 60 * minutes, failed)
    for contender in contenders.values():
        contender.close()
    found: dict[str, Any] = {name: {"failed": reason} for name, reason in failed.items()}
    for name in contenders:
        record = np.load(place / name / "run0" / "record.npz")
        found[name] = {
            **relative(name, seconds),
            "ms_per_step": 1000 * float(np.median(seconds[name]["wall"])) / job.piece,
            "loaded_mb": said[name]["loaded"],
            "peak_mb": seconds[name]["peak"],
            "deviation": measuring.largest_deviation(record["consumed"], record["asked"]),
            "first_loss": said[name]["first_loss"],
            **extra[name],
        }
        if "rest" in extra[name].get("resume", {}):
            found[name]["resume"] = measuring.resumed(record, extra[name]["resume"]["rest"])
    runs = max((len(s["wall"]) for s in seconds.values()), default=0)
    about = {
        "runs": runs,
        "rows": ROWS,
        "shape": SHAPE,
        "switch": [SWITCH, SWITCH_STEPS],
        "killed": KILLED,
        **vars(job),
    }
    return {
        "job": {key: value for key, value in about.items() if key != "place"},
        "machine": machine(),
        "versions": {CONTESTANTS[name].environment: said[name]["versions"] for name in contenders},
        "minutes": (time.perf_counter() - began) / 60,
        "contestants": {name: {**describe(name), **found[name]} for name in names},
    }


def relative(name: str, seconds: dict[str, Any]) -> dict[str, Any]:
    """Its times over those of the bare loops in its environment."""
    base = [seconds[loop] for loop in BARE[CONTESTANTS[name].environment] if loop in seconds]
    clocks = ("wall", "cpu") if base else ()
    return {clock: measuring.relative(seconds[name][clock], [b[clock] for b in base]) for clock in clocks}


def machine() -> dict[str, Any]:
    system = f"{platform.system()} {platform.machine()}"
    return {"system": system, "cores": os.cpu_count(), "load": round(os.getloadavg()[1], 1)}


def describe(name: str) -> dict[str, str]:
    contestant = CONTESTANTS[name]
    return {"title": contestant.title, "environment": contestant.environment}


def rounded(value: Any) -> Any:
    """Four digits are more than the noise leaves."""
    if isinstance(value, dict):
        return {key: rounded(v) if key != "first_loss" else round(v, 6) for key, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=str(ROOT / ".venv-bench/bin/python"), help="the Python of the peers")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS), metavar="NAME")
    steps = f"of every run; a multiple of {Job.pieces}, at least 48"
    parser.add_argument("--steps", type=int, default=Job.steps, help=steps)
    parser.add_argument("--minutes", type=float, default=13, help="after which no further timed run is begun")
    parser.add_argument("--keep", type=Path, help="a directory for what contestants write, their logs above all")
    parser.add_argument("--show", type=Path, metavar="JSON", help="measure nothing: print the page of a result")
    parser.add_argument("-o", "--out", type=Path, help="write what is printed here too")
    given = parser.parse_args()
    if given.show:
        text = page.page(json.loads(given.show.read_text(encoding="utf-8")))
    else:
        pythons = {"product": sys.executable, "bench": given.bench}
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
            place = (given.keep or Path(made)).resolve()
            place.mkdir(parents=True, exist_ok=True)
            found = measure(given.only, pythons, place, given.steps, given.minutes)
        text = json.dumps(rounded(found), indent=1) + "\n"
    print(text, end="")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
