"""`aioli train` as a person uses it: stopped, killed and resumed, it ends the same; mistakes are one line."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.torch import load_file

from aioli.cli import main
from aioli.data import write_store
from aioli.files import read_json

COMMAND = [sys.executable, "-m", "aioli", "train"]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    splits = {
        split: {g: j * 20 + np.cumsum(rng.integers(1, 4, size)) % 20 for j, g in enumerate("ab")}
        for split, size in (("train", 4000), ("val", 400), ("test", 400))
    }
    return write_store(tmp_path_factory.mktemp("data") / "store", splits, 16, 40)


def words(store, out, *more):
    settings = [
        "train.steps=300",
        "train.batch=4",
        "train.threads=1",
        "checkpoint.every=20",
        "method.settings={rounds: 3, k: 1}",
    ]
    return [f"data={store.path}", "-o", str(out), "method.name=aioli", *settings, *more]


@pytest.mark.slow  # test_soak kills more often, in less time
def test_killed_and_stopped_runs_end_with_the_same_bits(store, tmp_path):
    subprocess.run([*COMMAND, *words(store, tmp_path / "whole")], check=True, capture_output=True)
    expected = {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGKILL: -9}
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT):
        command = [*COMMAND, *words(store, tmp_path / "run")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            journal = tmp_path / "run" / "journal.jsonl"
            before = journal.stat().st_size if journal.exists() else 0
            deadline = time.monotonic() + 300
            while process.poll() is None and time.monotonic() < deadline:
                if journal.exists() and journal.stat().st_size != before:
                    break
                time.sleep(0.01)
            process.send_signal(number)
            _, errors = process.communicate(timeout=300)
        if process.returncode != 0 or number != signal.SIGTERM:
            assert process.returncode in (expected[number], 0)
        if number != signal.SIGKILL and process.returncode == expected[number] and "stopped at step" in errors:
            assert "go on with: aioli train" in errors
    subprocess.run([*COMMAND, *words(store, tmp_path / "run")], check=True, capture_output=True)
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "run")]
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])
    results = [read_json(tmp_path / name / "result.json") for name in ("whole", "run")]
    assert results[0].pop("seconds").keys() == results[1].pop("seconds").keys()
    assert results[0] == results[1]


def test_the_command_prints_its_result(store, tmp_path, capsys):
    assert (
        main(
            [
                "train",
                *words(store, tmp_path / "run", "train.steps=20", "method.settings={}", "method.name=stratified"),
                "--json",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["realised"] == {"a": 0.5, "b": 0.5}
    assert (
        main(
            ["train", *words(store, tmp_path / "run", "train.steps=20", "method.settings={}", "method.name=stratified")]
        )
        == 0
    )
    assert "trained on a 50.0%, b 50.0%" in capsys.readouterr().out
    assert main(["train", "--help-recipe"]) == 0
    assert "checkpoint.every" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (["train.step=3"], "train.step=3: no such field; did you mean steps?"),
        (["method.delta=0.1"], "reference; a setting of the method: method.settings.delta"),
        (["train.lr=-1"], "train.lr=-1: must be greater than 0"),
        (["model=huge"], "model.preset='huge' is not one of tiny"),
        (["method.name=aiolo"], "aiolo"),
        (["method.name=dml", "method.settings={}"], "needs extra runs before the final one"),
        (["method.settings={etaa: 1}"], "has no setting 'etaa'"),
        (["method.name=doremi", "method.settings={}"], "doremi needs extra runs"),
        (["data.groups=[a, z]"], "data.groups names 'z'"),
        (["data.store=/nowhere"], "is not a token store"),
        (["model={name: /nowhere}"], "cannot load model '/nowhere'"),
        (["train.accumulate=3"], "cannot be split into 3 parts"),
    ],
)
def test_mistakes_are_one_line(change, complaint, store, tmp_path, capsys):
    assert main(["train", *words(store, tmp_path / "run", *change)]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
