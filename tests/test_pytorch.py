"""A mixture through torch's DataLoader: the sampler's own stream with any workers, and no stale batch ever."""

import json
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import aioli
from aioli.adapters.pytorch import IGNORED, MixtureDataset, _left
from aioli.data import MixtureSampler, write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    tokens = {g: rng.integers(0, 500, size) for g, size in (("code", 4000), ("web", 1603), ("tiny", 90))}
    return write_store(tmp_path_factory.mktemp("data") / "store", {"train": tokens}, context=16, vocabulary=512)


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch):
    monkeypatch.setattr(MixtureDataset, "patience", 20.0)


def expected(store, path, batch=6, **settings):
    sampler = MixtureSampler(store, batch, **settings)
    return [sampler.next(p) for p in path]


def same(found, wanted):
    np.testing.assert_array_equal(found["input_ids"], wanted.ids)
    np.testing.assert_array_equal(found["group"], wanted.group)
    np.testing.assert_array_equal(found["positions"], wanted.positions)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_thousand_changes_of_the_mixture_and_never_a_stale_batch(store, workers):
    rng = np.random.default_rng(1)
    segments = [(rng.dirichlet(np.ones(3)), int(rng.integers(1, 4))) for _ in range(1000)]
    wanted = iter(expected(store, [p for p, n in segments for _ in range(n)]))
    data = MixtureDataset(MixtureSampler(store, 6))
    data.set(*segments[0])
    batches = iter(DataLoader(data, batch_size=None, num_workers=workers, prefetch_factor=4 if workers else None))
    for k, (_, n) in enumerate(segments):
        for _ in range(n):
            same(next(batches), next(wanted))
        if k + 1 < len(segments):
            data.set(*segments[k + 1])
    data.end()
    assert next(batches, None) is None


class Losses:
    """Made-up losses that depend on how often they were asked for, and on nothing else."""

    asked = 0

    def __call__(self):
        self.asked += 1
        return np.random.default_rng(self.asked).uniform(1, 2, 3)


def online(store, steps=60):
    policy = aioli.create("aioli", rounds=3, k=1).policy(groups=list(store.groups), steps=steps)
    return aioli.Cursor(policy, Losses())


@pytest.mark.parametrize(("workers", "per_step"), [(0, 1), (2, 1), (2, 3)])
def test_a_loop_with_a_cursor_follows_the_policy_to_its_end(store, workers, per_step):
    cursor = online(store)
    data = MixtureDataset(MixtureSampler(store, 6), cursor, per_step)
    reference = MixtureSampler(store, 6)
    mixtures, seen = [], 0
    for batch in DataLoader(data, batch_size=None, num_workers=workers):
        same(batch, reference.next(cursor.proportions))
        mixtures.append(cursor.proportions.tobytes())
        seen += 1
        if seen % per_step == 0:
            cursor.step()
    assert cursor.done
    assert seen == 60 * per_step
    assert len(set(mixtures)) > 3
    np.testing.assert_array_equal(data.sampler.drawn, reference.drawn)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cut", [1, 7, 20, 33])
@pytest.mark.parametrize("cursor_first", [True, False])
def test_a_resumed_loop_goes_on_as_if_nothing_had_happened(store, workers, cut, cursor_first):
    def run(data, cursor, steps):
        found = []
        for batch in DataLoader(data, batch_size=None, num_workers=workers):
            found.append({key: value.clone() for key, value in batch.items()})
            cursor.step()
            if len(found) == steps:
                break
        return found

    cursor = online(store)
    whole = run(MixtureDataset(MixtureSampler(store, 6), cursor), cursor, 60)
    cursor = online(store)
    data = MixtureDataset(MixtureSampler(store, 6), cursor)
    first = run(data, cursor, cut)
    saved = json.loads(json.dumps([cursor.state_dict(), data.state_dict()], allow_nan=False))
    again = online(store)
    resumed = MixtureDataset(MixtureSampler(store, 6), again)
    parts = [(again, saved[0]), (resumed, saved[1])]
    for part, state in parts if cursor_first else reversed(parts):
        part.load_state_dict(state)
    again.observe.asked = cursor.observe.asked
    second = run(resumed, again, 60 - cut)
    for found, wanted in zip(first + second, whole, strict=True):
        assert all((found[key] == wanted[key]).all() for key in wanted)


def test_workers_that_are_spawned_open_the_store_themselves(store):
    """To its end: torch ends a spawned worker as Python ends, which may abort it while it still sends batches."""
    cursor = online(store)
    data = MixtureDataset(MixtureSampler(store, 6), cursor)
    reference = MixtureSampler(store, 6)
    for batch in DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn"):
        same(batch, reference.next(cursor.proportions))
        cursor.step()
    assert cursor.done


def test_masks_become_ignored_labels(tmp_path):
    tokens = {"plain": np.arange(64) % 9, "tasks": np.arange(64) % 7}
    mask = {"train": {"tasks": (np.arange(64) % 2).astype(np.uint8)}}
    made = write_store(tmp_path / "s", {"train": tokens}, context=8, vocabulary=9, masks=mask)
    data = MixtureDataset(MixtureSampler(made, 8))
    data.set([0.5, 0.5], 1)
    batch = next(iter(data))
    assert (batch["labels"][batch["group"] == 0] == batch["input_ids"][batch["group"] == 0]).all()
    assert (batch["labels"][batch["group"] == 1][:, ::2] == IGNORED).all()
    assert (batch["labels"][batch["group"] == 1][:, 1::2] >= 0).all()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_used_up_group_is_announced_once_by_the_loop_itself(store, workers):
    data = MixtureDataset(MixtureSampler(store, 6, on_exhausted="cap"))
    p = np.array([0.5, 0.3, 0.2])
    wanted_sampler = MixtureSampler(store, 6, on_exhausted="cap")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        data.set(p, 20)
        batches = iter(DataLoader(data, batch_size=None, num_workers=workers))
        found = [next(batches) for _ in range(20)]
        data.end()
    assert sum("used up" in str(w.message) for w in told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in found:
            same(batch, wanted_sampler.next(p))
    np.testing.assert_array_equal(data.sampler.drawn, wanted_sampler.drawn)


def test_mistakes_are_named(store):
    sampler = MixtureSampler(store, 6)
    with pytest.raises(ValueError, match="batches=0"):
        MixtureDataset(sampler).set([1, 0, 0], 0)
    with pytest.raises(ValueError, match="batches_per_step=0"):
        MixtureDataset(sampler, batches_per_step=0)
    with pytest.raises(ValueError, match=r"call cursor\.step\(\) after every batch"):
        next(iter(MixtureDataset(sampler)))
    data = MixtureDataset(MixtureSampler(store, 6))
    data.set([1, 0, 0], 2)
    batches = iter(data)
    assert all(next(batches)["group"].sum() == 0 for _ in range(2))
    with pytest.raises(ValueError, match="no batch is due"):
        next(batches)
    data = MixtureDataset(MixtureSampler(store, 6))
    data.patience = 0.5
    data.set([1, 0, 0], 2)
    with pytest.raises(ValueError, match=r"waited 0\.5 s for the next mixture"):
        list(DataLoader(data, batch_size=None, num_workers=1))
    turned = MixtureSampler(store, 6, groups=("tiny", "web", "code"))
    with pytest.raises(ValueError, match="the policy mixes code, web, tiny and the sampler tiny, web, code"):
        MixtureDataset(turned, online(store))
    two = MixtureSampler(store, 6, groups=("code", "web"))
    with pytest.raises(ValueError, match=r"the policy mixes 3 groups and the sampler 2 \(code, web\)"):
        MixtureDataset(two, online(store))


def test_without_a_cursor_batches_are_counted_by_step(store):
    p = np.array([0.5, 0.3, 0.2])
    wanted = expected(store, [p] * 10)
    data = MixtureDataset(MixtureSampler(store, 6))
    data.set(p, 10)
    with pytest.raises(ValueError, match=r"Call data\.step\(\) after each"):
        data.state_dict()
    for k, batch in enumerate(DataLoader(data, batch_size=None, num_workers=2)):
        same(batch, wanted[k])
        data.step()
        if k == 3:
            break
    with pytest.raises(ValueError, match="only 4 of the 10 batches"):
        data.set(p, 5)
    again = MixtureDataset(MixtureSampler(store, 6))
    again.load_state_dict(data.state_dict())
    again.set(p, 6)
    for loop in (data, again):
        same(next(iter(DataLoader(loop, batch_size=None))), wanted[4])
    with pytest.raises(ValueError, match="is for batches of a segment"):
        MixtureDataset(MixtureSampler(store, 6)).step()


def test_a_new_data_set_takes_over_where_the_old_one_was(store):
    sampler, cursor = MixtureSampler(store, 6), online(store)
    reference, found = MixtureSampler(store, 6), 0
    while not cursor.done:
        data = MixtureDataset(sampler, cursor)
        for batch in DataLoader(data, batch_size=None):
            same(batch, reference.next(cursor.proportions))
            cursor.step()
            found += 1
            if found % 7 == 0:
                break
    assert found == 60
    assert len(cursor.listeners) == 1
    np.testing.assert_array_equal(sampler.drawn, reference.drawn)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, 4])
def test_batches_of_batches_are_refused(store, workers, size):
    """They would wait for a step that cannot come."""
    data = MixtureDataset(MixtureSampler(store, 6), online(store))
    with pytest.raises(ValueError, match=r"its batches are whole: DataLoader\(data, batch_size=None"):
        next(iter(DataLoader(data, batch_size=size, num_workers=workers)))


def test_labels_are_not_the_inputs(store):
    data = MixtureDataset(MixtureSampler(store, 6))
    data.set([1.0, 0.0, 0.0], 1)
    batch = next(iter(data))
    batch["labels"][:] = IGNORED
    assert (batch["input_ids"] >= 0).all()


LOOP = """
import sys, time
from torch.utils.data import DataLoader
from aioli.adapters.pytorch import MixtureDataset
from aioli.data import MixtureSampler, TokenStore
data = MixtureDataset(MixtureSampler(TokenStore(sys.argv[1]), 6))
data.set([1.0, 0.0, 0.0], 2)
begin = lambda worker: time.sleep(float(sys.argv[2]) * worker)
batches = iter(DataLoader(data, batch_size=None, num_workers=2, worker_init_fn=begin))
next(batches)
print(*(w.pid for w in batches._workers), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("later", [0, 5])
def test_workers_end_with_the_loop_that_was_killed(store, later):
    """Also if one of them had not begun by then."""
    command = [sys.executable, "-c", LOOP, str(store.path), str(later)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        process.kill()
    deadline = time.monotonic() + 120
    while any(map(running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in pids if running(pid)]


def running(pid):
    """Whether a process is there and has not ended: one that has may wait for somebody to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_worker_learns_that_its_loop_was_left():
    """Torch keeps the event in a variable of the function that runs the worker."""

    def worker_loop(done_event):
        left = _left()
        assert not left()
        done_event.set()
        assert left()

    worker_loop(threading.Event())


def test_a_loop_can_be_left_and_begun_again_in_the_middle_of_a_segment(store):
    cursor = online(store)
    data = MixtureDataset(MixtureSampler(store, 6), cursor)
    reference, found = MixtureSampler(store, 6), 0
    for stop in (3, 5, 9):
        for batch in DataLoader(data, batch_size=None, num_workers=2):
            same(batch, reference.next(cursor.proportions))
            cursor.step()
            found += 1
            if found % stop == 0:
                break
    assert torch.is_tensor(batch["input_ids"])
