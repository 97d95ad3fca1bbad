"""The peers: functions from a task to forms, which are names and endless iterators of int64 batches."""

import contextlib
import importlib
import importlib.machinery
import importlib.util
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aioli.data import TokenStore

EPOCH = 1 << 17
"""Samples in an epoch of mosaicml-streaming: so many that none ends while it is measured."""

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
    """The rows of one group, or their numbers from `first` on, in another random order in every epoch."""

    def __init__(self, size, seed, first=0, read=None):
        self.size, self.first, self.read, self.random = size, first, read, np.random.default_rng(seed)

    def __iter__(self):
        order = (self.first + self.random.permutation(self.size)).tolist()
        return iter(order) if self.read is None else map(self.read, order)


def torchdata_nodes(task):
    """torchdata.nodes: MultiNodeWeightedSampler and Batcher over nodes that read rows, or only choose them."""
    from torchdata import nodes

    groups, everything = task.groups(), task.one_map()
    begins = np.cumsum([0] + [len(rows) for rows in groups]).tolist()
    weights = {str(j): share for j, share in enumerate(task.p)}

    def batches(sources, read):
        named = {str(j): nodes.IterableWrapper(source) for j, source in enumerate(sources)}
        mixed = nodes.MultiNodeWeightedSampler(named, weights, nodes.StopCriteria.CYCLE_FOREVER)
        return iter(nodes.Loader(nodes.Mapper(nodes.Batcher(mixed, task.batch), read)))

    rows = [Shuffled(len(rows), j, read=rows.__getitem__) for j, rows in enumerate(groups)]
    indices = [Shuffled(len(rows), j, first=begins[j]) for j, rows in enumerate(groups)]
    return {
        "nodes of rows": batches(rows, lambda rows: np.array(rows, dtype=np.int64)),
        "nodes of indices": batches(indices, lambda index: everything[index].astype(np.int64)),
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
            streams=streams,
            batch_size=task.batch,
            shuffle=True,
            shuffle_algo="naive",  # the default holds the mixture over an epoch only
            epoch_size=EPOCH,
            predownload=EPOCH,
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
        return litdata.StreamingDataset(
            str(task.place / f"{j}"), item_loader=litdata.TokensLoader(context), shuffle=True
        )

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
