"""One contestant in a process of its own: python benchmarks/contest/worker.py NAME JOB PLACE

Orders come as lines of JSON on stdin and are answered on stdout; what a contestant prints goes to PLACE/log.

    {"name": …, "run": {options}, "job": {changes}, "timed": …, "fork": …, "die": …}

A timed run answers after every piece and goes on when it reads "go". One with `fork` is carried out by a child, a
process that has loaded everything and has run nothing yet, and which may be told to die at a step.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from contest import CONTESTANTS  # noqa: E402
from contest.job import load  # noqa: E402

ODM = "fms-acceleration-odm"
PACKAGES = ("torch", "transformers", "datasets", "accelerate", "numpy", "fms-acceleration", ODM)


def confined(place: Path) -> Any:
    """Keep what is printed and cached in this place, off the network; returns the way to answer."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tempfile.tempdir = str(place)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ.update(offline | {"HF_HOME": str(place / "cache"), "TMPDIR": str(place)})
    return answers


def memory(kind: str) -> int:
    """Resident memory of this process in MB: VmRSS now, VmHWM at its peak."""
    return int(Path("/proc/self/status").read_text().split(kind + ":")[1].split()[0]) // 1024


def forked(work: Callable[[], None], report: Path) -> str | None:
    """Do it in a process that has loaded everything and run nothing; returns what went wrong."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            report.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        return None
    return report.read_text(encoding="utf-8") if report.exists() else f"its process ended with {code}"


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if ODM in found:
        wanted = [
            text for text in metadata.requires(ODM) or () if text.startswith(("torch==", "transformers", "datasets"))
        ]
        found[f"{ODM} requires"] = ", ".join(wanted)
    return found


def main(name: str, file: str, place: Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    answers = confined(place)

    def answer(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")

    def wait(seconds: dict[str, float]) -> None:
        answer(**seconds)
        if sys.stdin.readline().strip() != "go":
            raise SystemExit

    try:
        contestant = CONTESTANTS[name]
        for module in contestant.needs:  # before anything that takes time
            import_module(module)
        import torch

        from contest.by_hand import first_loss
        from contest.turns import Turns

        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        function, job = contestant.function(), load(file)
        first = first_loss(job)
        answer(versions=versions(), first_loss=first, loaded=memory("VmRSS"))
        for line in sys.stdin:
            order = json.loads(line)
            here, options = place / order["name"], {**contestant.settings, **order["run"]}
            here.mkdir(exist_ok=True)
            turns = Turns(replace(job, **order["job"]), wait if order["timed"] else None, order["die"])

            def run(turns: Any = turns, here: Path = here, options: dict[str, Any] = options) -> None:
                function(turns.job, turns, place=here, **options)
                turns.save(here / "record.npz")

            problem = forked(run, here / "failed") if order["fork"] else run()
            answer(problem=problem, record=str(here / "record.npz"), peak=memory("VmHWM"))
    except Exception as error:
        answer(failed=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
