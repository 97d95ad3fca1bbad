"""The loaders one would pick instead of ours, each in its best forms: the contenders of benchmarks/loader.py.

A peer is a function from a task to its forms: names and endless iterators of int64 batches. It runs in a process of
its own, so that its threads and workers disturb no other. There it is checked (shape, type, rows that are rows of the
data, the mixture), warmed up, and then delivers as many batches as it is told to.
"""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
import types
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from aioli.data import TokenStore

EPOCH = 1 << 16
"""Samples in an epoch of mosaicml-streaming: so many that few or none end while it is measured."""
CHECKED = 200
"""Batches of each form that are compared with the data."""
REST = 3.0
"""Seconds for threads and workers of a peer to read ahead as far as they want."""

notes = []
"""What should be known about the peer in this process."""


@dataclass(frozen=True)
class Task:
    """What to deliver: batches from the groups of a store, in these proportions."""

    place: Path
    """A directory to write in."""
    store: Path
    everything: Path
    """All rows of all groups in one file, in the order of the groups."""
    batch: int
    p: tuple[float, ...]

    def groups(self):
        store = TokenStore(self.store)
        return [store.rows(j) for j in range(len(store.groups))]

    def one_map(self):
        return np.asarray(np.memmap(self.everything, np.uint16, "r")).reshape(-1, TokenStore(self.store).context)


# ---------------------------------------------------------------------- the peers


def interleaved(task):
    """datasets.interleave_datasets over memory-mapped Arrow files."""
    import datasets

    datasets.disable_progress_bars()
    parts = [_arrow(datasets, rows, task.place / f"{j}") for j, rows in enumerate(task.groups())]
    settings = {"probabilities": list(task.p), "seed": 0, "stopping_strategy": "all_exhausted"}
    mixed = datasets.interleave_datasets([part.shuffle(seed=j) for j, part in enumerate(parts)], **settings)
    stream = datasets.interleave_datasets([part.to_iterable_dataset() for part in parts], **settings)

    def batches(dataset, read):
        while True:
            yield from map(read, dataset.iter(task.batch, drop_last_batch=True))

    def from_arrow(table):
        column = table["ids"].combine_chunks()
        return column.flatten().to_numpy().reshape(task.batch, -1).astype(np.int64)

    return {
        "map-style, arrow": batches(mixed.with_format("arrow"), from_arrow),
        "map-style, numpy": batches(mixed.with_format("numpy"), lambda batch: batch["ids"]),
        "streaming, arrow, in stored order": batches(stream.with_format("arrow"), from_arrow),
    }


def _arrow(datasets, rows, place):
    import pyarrow as pa

    context = rows.shape[1]
    features = datasets.Features({"ids": datasets.List(datasets.Value("uint16"), length=context)})
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), context)
    datasets.Dataset(pa.table({"ids": column}).cast(features.arrow_schema)).save_to_disk(place)
    return datasets.load_from_disk(place)


class Shuffled:
    """The items of one group, in another random order in every epoch."""

    def __init__(self, items, seed):
        self.items, self.random = items, np.random.default_rng(seed)

    def __iter__(self):
        return map(self.items.__getitem__, self.random.permutation(len(self.items)).tolist())


def torchdata_nodes(task):
    """torchdata.nodes: MultiNodeWeightedSampler and Batcher over nodes that read rows, or only choose them."""
    from torchdata import nodes

    groups, everything = task.groups(), task.one_map()
    edges = np.cumsum([0] + [len(rows) for rows in groups]).tolist()
    weights = {str(j): share for j, share in enumerate(task.p)}

    def batches(sources, read):
        named = {str(j): nodes.IterableWrapper(Shuffled(items, j)) for j, items in enumerate(sources)}
        mixed = nodes.MultiNodeWeightedSampler(named, weights, nodes.StopCriteria.CYCLE_FOREVER)
        return iter(nodes.Loader(nodes.Mapper(nodes.Batcher(mixed, task.batch), read)))

    return {
        "nodes of rows": batches(groups, lambda rows: np.array(rows, dtype=np.int64)),
        "nodes of indices, gathered from one map": batches(
            [range(*edge) for edge in itertools.pairwise(edges)], lambda index: everything[index].astype(np.int64)
        ),
    }


def mosaicml_streaming(task):
    """mosaicml-streaming: StreamingDataset with weighted Streams over local MDS shards, shuffled.

    `predownload` covers the epoch, so that its threads, which take a file lock for every sample, end in the warm-up.
    """
    with _torchvision():
        import streaming
    groups = task.groups()
    for j, rows in enumerate(groups):
        columns = {"ids": f"ndarray:uint16:{rows.shape[1]}"}
        with streaming.MDSWriter(out=str(task.place / f"{j}"), columns=columns) as out:
            for row in rows:
                out.write({"ids": row})

    def batches(workers):
        streams = [streaming.Stream(local=str(task.place / f"{j}"), proportion=share) for j, share in enumerate(task.p)]
        dataset = streaming.StreamingDataset(
            streams=streams, batch_size=task.batch, shuffle=True, epoch_size=EPOCH, predownload=EPOCH, **eval(os.environ.get('MS','{}'))
        )
        loader = streaming.StreamingDataLoader(
            dataset, batch_size=task.batch, num_workers=workers, drop_last=True, collate_fn=_collate_samples
        )
        while True:
            yield from loader

    return {f"{workers} workers": batches(workers) for workers in (0, 2)}


def _collate_samples(samples):
    return np.array([sample["ids"] for sample in samples], dtype=np.int64)


@contextlib.contextmanager
def _torchvision():
    """Import `streaming` even where torchvision does not load (built for another torch): only its images need it."""
    fakes = {}
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:
        notes.append(f"a placeholder stood in for torchvision, which does not load here ({error})")
        for name in ("", ".datasets", ".transforms", ".transforms.functional"):
            fakes["torchvision" + name] = fake = types.ModuleType("torchvision" + name)
            fake.__spec__ = importlib.machinery.ModuleSpec(fake.__name__, None)
        fakes["torchvision.datasets"].VisionDataset = object
        fakes["torchvision.transforms.functional"].to_tensor = None
        sys.modules.update(fakes)
    yield
    for name in fakes:
        del sys.modules[name]


def litdata_combined(task):
    """litdata: CombinedStreamingDataset with weights over local chunks of tokens, shuffled."""
    import litdata
    import torch
    from litdata.streaming import Cache

    context = task.one_map().shape[1]
    for j, rows in enumerate(task.groups()):
        cache = Cache(str(task.place / f"{j}"), chunk_size=rows.size, item_loader=litdata.TokensLoader(context))
        cache[0] = np.array(rows.ravel())
        cache.done()
        cache.merge()

    def batches(loader, **settings):
        dataset = _combined(litdata, task, context)
        loader = loader(dataset, batch_size=task.batch, drop_last=True, collate_fn=_collate, **settings)
        while True:
            yield from loader

    return {
        "torch's DataLoader, 0 workers": batches(torch.utils.data.DataLoader),
        "its own loader, 0 workers": batches(litdata.StreamingDataLoader),
        "its own loader, 2 workers": batches(litdata.StreamingDataLoader, num_workers=2, persistent_workers=True),
    }


def _combined(litdata, task, context):
    def dataset(j):
        return litdata.StreamingDataset(str(task.place / f"{j}"), item_loader=litdata.TokensLoader(context), shuffle=True)

    parts = [dataset(j) for j in range(len(task.p))]
    return litdata.CombinedStreamingDataset(parts, seed=0, weights=task.p, iterate_over_all=False)


def _collate(items):
    return np.array(items, dtype=np.int64)


PEERS = {
    "datasets": ("datasets", interleaved),
    "torchdata": ("torchdata", torchdata_nodes),
    "mosaicml-streaming": ("streaming", mosaicml_streaming),
    "litdata": ("litdata", litdata_combined),
}
"""Name of the distribution -> its module, and the peer."""


def installed(name):
    return importlib.util.find_spec(PEERS[name][0]) is not None


# ---------------------------------------------------------------------- running one


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
    everything = task.one_map()
    keys = _key(everything)
    order = np.argsort(keys)
    edges = np.cumsum([len(rows) for rows in task.groups()])
    report = {"realised": {}, "each": {}, "failed": {}, "notes": notes}
    for form in list(forms):
        try:
            found = order[np.searchsorted(keys, _key(rows := _rows(forms[form], task)), sorter=order) % len(order)]
            if not np.array_equal(everything[found], rows):
                raise ValueError("delivers rows that are not in the data")
            drawn = np.bincount(np.searchsorted(edges, found, side="right"), minlength=len(task.p)) / len(found)
            if np.abs(drawn - task.p).max() > 0.05:
                raise ValueError(f"delivers the mixture {drawn.tolist()}, not {task.p}")
            time.sleep(REST)
            report["realised"][form], report["each"][form] = drawn.round(3).tolist(), settled(forms[form])
        except Exception as error:
            report["failed"][form] = f"{type(error).__name__}: {error}"
    return report


def _key(rows):
    """The first four tokens of each row as one number; random rows differ in it."""
    return np.ascontiguousarray(rows[:, :4], dtype=np.uint16).view(np.uint64)[:, 0]


def _rows(batches, task):
    """The samples of the first batches, which must have the right shape and type."""
    checked = [np.asarray(next(batches)) for _ in range(CHECKED)]
    shape = (task.batch, TokenStore(task.store).context)
    wrong = {(b.shape, b.dtype.name) for b in checked} - {(shape, "int64")}
    if wrong:
        raise ValueError(f"delivers {wrong}, not {shape} of int64")
    return np.concatenate(checked)
