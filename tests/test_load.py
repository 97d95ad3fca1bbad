"""Long journals, many groups and many runs take bounded work and memory; `make load` measures them whole."""

import tracemalloc

import load
import numpy as np

from aioli.policies import rules
from aioli.registry import create
from aioli.report.trace import Trace
from aioli.runs import store as stores
from aioli.runs.store import RunStore


def peak(path):
    tracemalloc.start()
    try:
        Trace(path).read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_journal_ten_times_as_long_takes_no_more_memory(tmp_path):
    load.journal(tmp_path / "short", 2_000)
    load.journal(tmp_path / "long", 20_000)
    assert peak(tmp_path / "long") < 1.2 * peak(tmp_path / "short")


def test_a_journal_of_a_thousand_groups_is_kept_in_few_numbers(tmp_path):
    load.journal(tmp_path / "wide", 400, [f"group {k}" for k in range(1000)])
    trace = Trace(tmp_path / "wide").read()
    assert trace.segments == 400
    assert len(trace.proportions.steps) <= 2 * 60 + 1
    assert trace.proportions.steps[-1] == 400


def test_listing_reads_each_run_a_few_times_however_many_there_are(tmp_path, monkeypatch):
    store, reads = RunStore(tmp_path / "runs"), []
    load.finished(store, 50)
    read = stores.read_json
    monkeypatch.setattr(stores, "read_json", lambda path, *more: reads.append(path) or read(path, *more))
    assert {entry.state for entry in store.entries()} == {"finished"}
    assert len(reads) == 2 * 50


def test_writers_lose_nothing(tmp_path):
    RunStore(tmp_path / "many")
    assert load.writers(tmp_path / "many", 4, 3) == 0


def test_a_journal_is_told_of_A_once_a_round(monkeypatch):
    def told(policy):
        from aioli.protocol import Observation

        found = []
        while (segment := policy.ask()) is not None:
            losses = {"val_loss": 3 - segment.proportions} if segment.observe else {}
            policy.tell(Observation(tokens=1000 * segment.steps * segment.proportions, **losses))
            found.append("A" in policy.news())
        return found

    found = told(create("aioli", rounds=4, k=1).policy(groups=3, steps=60))
    assert sum(found) == 4
    assert len(found) > 8
    monkeypatch.setattr(rules, "ENTRIES", 8)
    assert not any(told(create("aioli", rounds=4, k=1).policy(groups=3, steps=60)))


def test_many_groups_through_a_whole_policy():
    found = load.policies(100, 400)
    assert np.isfinite(list(found.values())).all()
