"""From documents to batches: `prepare` makes a `TokenStore`, `MixtureSampler` draws from it.

Only `prepare` needs more than NumPy (`pip install "aioli-mix[data]"`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioli.data.local import local_corpus
from aioli.data.sampler import Batch, Indices, MixtureSampler
from aioli.data.store import TokenStore, write_store

if TYPE_CHECKING:
    from aioli.data.preparing import prepare

__all__ = ["Batch", "Indices", "MixtureSampler", "TokenStore", "local_corpus", "prepare", "write_store"]


def __getattr__(name: str) -> Any:
    if name == "prepare":
        from aioli.data.preparing import prepare

        return prepare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
