"""Who works on a run: one at a time, and a dead owner's run is taken over."""

import json
import os
import subprocess
import sys
import time

import pytest

from aioli.runs import claim as claims
from aioli.runs.claim import Claim, LostError, owner_of


def test_one_owner_at_a_time(tmp_path):
    with Claim.make(tmp_path) as claim:
        assert claim.held
        assert Claim.make(tmp_path) is None
        assert owner_of(tmp_path)["process"] == os.getpid()
        claim.check()
    assert owner_of(tmp_path) is None
    with Claim.make(tmp_path) as again:
        assert again.number == 2
        assert not claim.held
        with pytest.raises(LostError, match="taken over"):
            claim.check()
    assert len(list(tmp_path.glob("claim-*"))) == 1


def test_released_even_when_the_work_fails(tmp_path):
    with pytest.raises(RuntimeError), Claim.make(tmp_path):
        raise RuntimeError
    assert owner_of(tmp_path) is None


def _hold(folder):
    code = (
        "import sys, time; from pathlib import Path; from aioli.runs.claim import Claim\n"
        "with Claim.make(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_a_dead_owner_is_followed_at_once_on_the_same_machine(tmp_path):
    with _hold(tmp_path) as process:
        assert Claim.make(tmp_path) is None
        assert owner_of(tmp_path)["process"] == process.pid
        process.kill()
    assert owner_of(tmp_path) is None
    with Claim.make(tmp_path) as claim:
        assert claim.number == 2


def test_a_process_number_that_is_used_again_is_not_the_owner(tmp_path):
    with _hold(tmp_path) as process:
        process.kill()
    file = next(tmp_path.glob("claim-*"))
    about = json.loads(file.read_text())
    file.write_text(json.dumps({**about, "process": os.getpid()}))  # alive, but it began at another time
    assert owner_of(tmp_path) is None


def _elsewhere(folder, age):
    """A claim of another machine, with its last sign of life so many seconds ago."""
    file = folder / "claim-000001.json"
    file.write_text(json.dumps({"process": 1, "host": "far", "boot": "another", "token": "x", "released": False}))
    now = time.time()
    os.utime(file, (now - age, now - age))


def test_another_machine_is_believed_for_a_while(tmp_path):
    _elsewhere(tmp_path, 10)
    assert Claim.make(tmp_path) is None
    assert owner_of(tmp_path)["host"] == "far"
    _elsewhere(tmp_path, claims.DEAD + 5)
    assert owner_of(tmp_path) is None
    with Claim.make(tmp_path) as claim:
        assert claim.number == 2


def test_signs_of_life_are_given(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT", 0.05)
    with Claim.make(tmp_path) as claim:
        file = tmp_path / "claim-000001.json"
        os.utime(file, (1, 1))
        deadline = time.monotonic() + 120
        while file.stat().st_mtime == 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert file.stat().st_mtime > 1
        assert claim.held


def test_a_full_disk_leaves_no_empty_claim(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        Claim.make(tmp_path)
    monkeypatch.undo()
    assert Claim.make(tmp_path) is not None


def test_signs_of_life_survive_a_file_system_that_is_away_for_a_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "BEAT", 0.02)
    calls, real = [], os.utime

    def flaky(*arguments):
        calls.append(arguments)
        if len(calls) < 3:
            raise OSError(116, "Stale file handle")
        real(*arguments)

    with Claim.make(tmp_path):
        monkeypatch.setattr(os, "utime", flaky)
        deadline = time.monotonic() + 120
        while len(calls) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        monkeypatch.undo()
    assert len(calls) >= 5


def test_processes_that_are_hidden_are_believed_for_a_while(tmp_path, monkeypatch):
    """As on clusters that show nobody the processes of others."""
    with _hold(tmp_path) as process:
        monkeypatch.setattr(claims, "_seen", lambda number: None)
        assert owner_of(tmp_path)["process"] == process.pid
        file = next(tmp_path.glob("claim-*"))
        os.utime(file, (1, 1))
        assert owner_of(tmp_path) is None
        process.kill()


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_claim_that_is_being_written_is_respected(tmp_path, content):
    (tmp_path / "claim-000001.json").write_text(content)
    assert Claim.make(tmp_path) is None


def test_of_many_who_find_a_dead_owner_one_becomes_the_next(tmp_path):
    _elsewhere(tmp_path, claims.DEAD + 5)
    code = (
        "import sys, time; from pathlib import Path; from aioli.runs.claim import Claim\n"
        "while not Path(sys.argv[1], 'go').exists(): time.sleep(0.001)\n"
        "claim = Claim.make(Path(sys.argv[1])); print(claim is not None, flush=True)\n"
        "sys.stdin.readline()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    time.sleep(1.0)
    (tmp_path / "go").touch()
    said = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.communicate("\n")
    assert sorted(said) == ["False"] * 5 + ["True"]
