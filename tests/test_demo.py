"""The demo as a person runs it, on a small store in place of this machine's text."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from aioli.cli import main
from aioli.data import write_store


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory in which the text is already tokenized; prose is like python."""
    rng = np.random.default_rng(0)
    splits = {
        split: {
            g: 20 * j + np.cumsum(rng.integers(1, 4, size)) % 20
            for g, j in (("headers", 0), ("prose", 1), ("python", 1), ("stubs", 2))
        }
        for split, size in (("train", 8000), ("val", 800), ("test", 800))
    }
    write_store(tmp_path / "aioli-demo" / "store", splits, 16, 60)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_compares_two_runs_and_remembers_them(place, capsys):
    assert main(["demo", "--steps", "240"]) == 0
    first = capsys.readouterr().out
    for words in ("good at documentation prose", "stratified", "aioli-ood", "vs even", "What to try next", "one seed"):
        assert words in first
    assert (place / "aioli-demo" / "prose-seed-0.html").is_file()
    began = (place / "aioli-demo" / "prose-aioli-ood-seed-0-240" / "journal.jsonl").stat().st_mtime_ns
    assert main(["demo", "--steps", "240"]) == 0
    again = capsys.readouterr().out
    assert first.split("vs even")[1] == again.split("vs even")[1]
    assert (place / "aioli-demo" / "prose-aioli-ood-seed-0-240" / "journal.jsonl").stat().st_mtime_ns == began


@pytest.mark.slow
def test_an_interrupted_demo_leaves_nobody_behind_and_goes_on(place):
    command = [sys.executable, "-m", "aioli", "demo", "--in-domain", "--steps", "100000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        runs = [place / "aioli-demo" / f"in-domain-{name}-seed-0-100000" for name in ("stratified", "aioli")]
        deadline = time.monotonic() + 300
        while not all((run / "status.json").exists() for run in runs) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(demo.pid, signal.SIGINT)
        _, errors = demo.communicate(timeout=300)
    assert demo.returncode == 130, errors
    for run in runs:
        assert list((run / "checkpoints").glob("step-*"))
        assert not (run / "status.json").exists()


def test_mistakes_are_one_line(place, capsys):
    assert main(["demo", "--steps", "5"]) == 2
    assert "--steps 5 is too short" in capsys.readouterr().err
