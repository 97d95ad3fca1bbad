"""The job: three groups of made-up sequences, a small model, an optimizer; the same for every contestant.

Every sequence says where it comes from: its first token is the number of its group (held-out ones: plus the number of
groups), the next two the number of the row. So whatever reaches the model can be counted, whoever drew it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
"""Of a LLaMA, built from its configuration."""
ROWS, HELD_OUT = 8192, 256
"""Sequences of each group to train on and to look at: so many that no group is gone through."""
PREDICTABLE = (0.2, 0.5, 0.8)
"""How often the next token follows from the last one, by group: some are easier to learn than others."""


@dataclass(frozen=True)
class Job:
    """What is trained; plain data, since contestants run in other environments."""

    place: str
    """Where tokens, the first weights and the reference are."""
    steps: int = 48
    pieces: int = 8
    """Turns in which a run is timed."""
    batch: int = 16
    context: int = 64
    vocabulary: int = 512
    groups: tuple[str, ...] = ("a", "b", "c")
    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.1
    clip: float = 1.0
    warmup: int = 4
    floor: float = 0.1
    seed: int = 0
    rounds: int = 2
    """How often Aioli updates the mixture, and fms-acceleration-odm where it looks at held-out data."""
    looked_at: int = 1
    """Held-out sequences of each group in a round."""

    @property
    def piece(self) -> int:
        """Steps in a turn."""
        return self.steps // self.pieces

    @property
    def model(self) -> str:
        return str(Path(self.place, "model"))

    @property
    def reference(self) -> str:
        return str(Path(self.place, "reference"))

    @property
    def store(self) -> str:
        return str(Path(self.place, "store"))

    def rows(self, split: str) -> list[np.ndarray]:
        """The sequences of every group."""
        return [np.load(Path(self.place, f"{split}-{name}.npy"), mmap_mode="r") for name in self.groups]

    def rate(self, step: int) -> float:
        """The learning rate: linear warm-up, then a cosine to a floor."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        along = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, along))))

    def save(self) -> Path:
        file = Path(self.place, "job.json")
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return file


def load(file: str | Path) -> Job:
    """A job that was saved."""
    found = json.loads(Path(file).read_text(encoding="utf-8"))
    return Job(**{key: tuple(value) if isinstance(value, list) else value for key, value in found.items()})


def sequences(job: Job, group: int, held_out: bool, count: int) -> np.ndarray:
    """So many sequences of a group: a random walk that mostly follows a fixed path, with its mark at the front."""
    rng = np.random.default_rng([job.seed, group, int(held_out)])
    first, size = 2 * len(job.groups), job.vocabulary
    path = np.random.default_rng([job.seed, group]).permutation(size)
    ids = np.empty((count, job.context), dtype=np.uint16)
    number = np.arange(count)
    ids[:, 0] = group + len(job.groups) * held_out
    ids[:, 1], ids[:, 2] = number // 256, number % 256
    for t in range(3, job.context):
        follows = rng.random(count) < PREDICTABLE[group % len(PREDICTABLE)]
        ids[:, t] = np.where(follows, path[ids[:, t - 1]], rng.integers(first, size, count))
    return ids


def write_tokens(job: Job) -> None:
    """All sequences, as plain arrays that every environment can read."""
    for group, name in enumerate(job.groups):
        np.save(Path(job.place, f"train-{name}.npy"), sequences(job, group, False, ROWS))
        np.save(Path(job.place, f"val-{name}.npy"), sequences(job, group, True, HELD_OUT))


def marks(ids: np.ndarray, groups: int) -> np.ndarray:
    """Group and row of every sequence that is for training: (sequences, 2)."""
    found = np.stack([ids[:, 0], ids[:, 1] * 256 + ids[:, 2]], axis=1)
    return found[found[:, 0] < groups]
