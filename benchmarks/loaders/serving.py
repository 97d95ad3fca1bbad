"""Running one peer in a process of its own: check it, warm it up, and let it deliver batches when it is told to."""

import multiprocessing
import os
import tempfile
import time
from dataclasses import replace

import numpy as np

from loaders.forms import PEERS, notes

CHECKED = 200
"""Batches of each form that are compared with the data."""
REST = 3.0
"""Seconds for threads and workers of a peer to read ahead as far as they want."""


def serve(pipe, name, task):
    """In a process of its own: build a peer, warm it up when told to, then time (form, batches) as often as asked.

    Every answer is a dict or a number; a text says what failed.
    """
    task = replace(task, place=task.place / name)
    task.place.mkdir()
    _confine(task.place)
    try:
        forms = PEERS[name][1](task)
        pipe.send({})
        pipe.recv()
        pipe.send(_warm(forms, task))
        while (order := pipe.recv()) is not None:
            form, count = order
            pipe.send(seconds(forms[form], count))
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")


def seconds(batches, count):
    """Seconds that it takes to deliver so many batches."""
    began = time.perf_counter()
    for _ in range(count):
        next(batches)
    return time.perf_counter() - began


def settled(batches, piece=0.3, patience=15.0):
    """Seconds per batch, once that has stopped to change."""
    end, count, last = time.perf_counter() + patience, 4, float("inf")
    while True:
        each = seconds(batches, count) / count
        if abs(each - last) < 0.1 * last or time.perf_counter() > end:
            return each
        count, last = max(1, round(piece / each)), each


def _confine(place):
    """Keep what a peer prints, caches and locks in its own directory, and keep it off the network."""
    log = os.open(place / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    tempfile.tempdir = str(place)
    multiprocessing.set_start_method(None, force=True)  # workers start as they do by default
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LITDATA_DISABLE_VERSION_CHECK": "1"}
    os.environ.update(offline | {"HF_HOME": str(place / "cache"), "TMPDIR": str(place)})


def _warm(forms, task):
    """Check every form and warm it up; those that fail are left out."""
    report = {"realised": {}, "each": {}, "failed": {}, "notes": notes}
    for form, batches in forms.items():
        try:
            report["realised"][form] = _checked(batches, task)
            time.sleep(REST)
            report["each"][form] = settled(batches)
        except Exception as error:
            report["failed"][form] = f"{type(error).__name__}: {error}"
    return report


def _checked(batches, task):
    """The mixture of the first batches, all of whose rows must be rows of the data."""
    rows, everything = _rows(batches, task), task.one_map()
    keys = _key(everything)
    order = np.argsort(keys)
    found = order[np.searchsorted(keys, _key(rows), sorter=order) % len(order)]
    if not np.array_equal(everything[found], rows):
        raise ValueError("delivers rows that are not in the data")
    edges = np.cumsum([len(group) for group in task.groups()])
    drawn = np.bincount(np.searchsorted(edges, found, side="right"), minlength=len(task.p)) / len(found)
    if np.abs(drawn - task.p).max() > 0.05:
        raise ValueError(f"delivers the mixture {drawn.tolist()}, not {task.p}")
    return drawn.round(3).tolist()


def _key(rows):
    """The first four tokens of each row as one number; random rows differ in it."""
    return np.ascontiguousarray(rows[:, :4], dtype=np.uint16).view(np.uint64)[:, 0]


def _rows(batches, task):
    """The samples of the first batches, which must have the right shape and type."""
    checked = [np.asarray(next(batches)) for _ in range(CHECKED)]
    shape = (task.batch, task.one_map().shape[1])
    wrong = {(b.shape, b.dtype.name) for b in checked} - {(shape, "int64")}
    if wrong:
        raise ValueError(f"delivers {wrong}, not {shape} of int64")
    return np.concatenate(checked)
