"""A small part of `make soak`: whatever happens to a command, the same command goes on, and damage is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.page import page

ROOT = Path(__file__).resolve().parent.parent


def soak(tmp_path, *options):
    """In a process of its own, which forks."""
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "-o", str(tmp_path / "soak.json"), *options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((tmp_path / "soak.json").read_text())


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.slow) for name in ("train", "prepare", "compare")]
)
def test_in_spite_of_faults_the_end_is_the_same(command, tmp_path):
    found = soak(tmp_path, "--share", "0.03", "--only", command, "--no-ray")
    assert found["kills"] >= 5
    assert {row["command"] for row in found["faults"]} == {command}
    assert all(row["failed"] == 0 for row in found["faults"])


@pytest.mark.slow
def test_damage_is_told_or_harmless(tmp_path):
    found = soak(tmp_path, "--share", "0.01", "--only", "flips")
    assert all(row["flips"] == row["detected"] + row["harmless"] > 0 for row in found["damage"])
    assert "everything was as promised" in page(found, tmp_path / "load.json")


def test_the_page_takes_figures_of_load_if_there_are_any(tmp_path):
    found = json.loads((ROOT / "results" / "soak.json").read_text())
    assert "## Load" not in page(found, tmp_path / "none.json")
    (tmp_path / "load.json").write_text(
        json.dumps([{"what": "runs listed", "figure": 1.2, "bound": 2, "unit": "s", "holds": True}])
    )
    assert "| runs listed | 1.2 s | 2 s |" in page(found, tmp_path / "load.json")


def test_every_bound_held_under_the_last_load():
    found = json.loads((ROOT / "results" / "load.json").read_text())
    assert len(found) > 20
    assert all(row["holds"] and row["figure"] <= row["bound"] for row in found)


def test_the_last_soak_found_nothing():
    found = json.loads((ROOT / "results" / "soak.json").read_text())
    assert all(row["failed"] == 0 and row["wrong"] == [] for row in found["faults"])
    assert all(row["missed"] == 0 and row["wrong"] == [] for row in found["damage"])
