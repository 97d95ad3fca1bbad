"""The contestants of benchmarks/peers.py: one small training job, through us and through what one would pick instead.

job.py is what is trained and on what; preparing.py makes it. Every contestant is a function in by_hand.py, trainers.py
or ours.py, which builds, trains to the end and says after each step what was asked for; what was really consumed is
seen at the door of the model (turns.py). worker.py runs one of them in a process and an environment of its own
(contender.py is the other end), measuring.py turns what was recorded into numbers, and page.py these into
docs/peers.md. A new one is a function and a line in CONTESTANTS.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Contestant:
    """Someone who trains the job."""

    title: str
    environment: str
    """product: where aioli is installed; bench: with transformers 4, which some peers need."""
    place: str
    """Module and function."""
    settings: dict[str, Any] = field(default_factory=dict)
    resumes: bool = False
    """Whether it says how it can be gone on with after a kill."""
    switches: tuple[int, ...] = ()
    """Numbers of loader workers with which its mixture is changed in the middle of a run."""
    needs: tuple[str, ...] = ()
    """Modules without which it cannot take part."""

    def function(self) -> Callable[..., None]:
        module, name = self.place.split(":")
        found: Callable[..., None] = getattr(importlib.import_module(f"contest.{module}"), name)
        return found


OURS = {"place": "ours:train", "needs": ("aioli",), "resumes": True}
TRAINER = {"environment": "product", "needs": ("datasets",), "resumes": True}
ODM = {
    "environment": "bench",
    "place": "trainers:odm",
    "resumes": True,
    "needs": ("fms_acceleration", "fms_acceleration_odm"),
}

CONTESTANTS: dict[str, Contestant] = {
    "plain": Contestant("a bare PyTorch loop", "product", "by_hand:plain"),
    "again": Contestant("the bare loop once more (noise)", "product", "by_hand:plain"),
    "interleave": Contestant("`interleave_datasets` + Trainer", place="trainers:interleaved", **TRAINER),
    "doge-by-hand": Contestant("DoGE by hand", "product", "by_hand:doge"),
    "doge-val-by-hand": Contestant("DoGE by hand, held-out target", "product", "by_hand:doge", {"held_out": True}),
    "doremi-by-hand": Contestant("DoReMi by hand", "product", "by_hand:doremi"),
    "stratified": Contestant("`aioli train`, stratified", "product", settings={"method": "stratified"}, **OURS),
    "aioli": Contestant("`aioli train`, aioli", "product", settings={"method": "aioli"}, switches=(0,), **OURS),
    "pooled": Contestant("`aioli train`, aioli-pooled", "product", settings={"method": "aioli-pooled"}, **OURS),
    "doge": Contestant("`aioli train`, DoGE's proxy", "product", settings={"method": "doge", "proxy": True}, **OURS),
    "doremi": Contestant(
        "`aioli train`, DoReMi's proxy", "product", settings={"method": "doremi", "proxy": True}, **OURS
    ),
    "loop": Contestant(
        "aioli in the bare loop", "product", "ours:loop", resumes=True, switches=(0, 2), needs=("aioli",)
    ),
    "callback": Contestant(
        "aioli in the Trainer",
        "product",
        "trainers:ours",
        resumes=True,
        switches=(0, 2),
        needs=("aioli.adapters.huggingface",),
    ),
    "plain-4": Contestant("a bare PyTorch loop, transformers 4", "bench", "by_hand:plain"),
    "again-4": Contestant("the bare loop once more (noise), transformers 4", "bench", "by_hand:plain"),
    "interleave-4": Contestant(
        "`interleave_datasets` + Trainer, transformers 4",
        "bench",
        "trainers:interleaved",
        needs=("datasets",),
    ),
    "odm-loss": Contestant("fms-acceleration-odm, training loss", settings={"reward": "train_loss"}, **ODM),
    "odm-entropy": Contestant("fms-acceleration-odm, entropy", settings={"reward": "entropy"}, switches=(0, 2), **ODM),
}

BARE = {"product": ("plain", "again"), "bench": ("plain-4", "again-4")}
"""What times and memory are divided by, in each environment."""
