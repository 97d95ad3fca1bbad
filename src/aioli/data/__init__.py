"""From prepared tokens to batches: `TokenStore` on disk, `MixtureSampler` over it. NumPy only."""

from aioli.data.sampler import Batch, Indices, MixtureSampler
from aioli.data.store import TokenStore, write_store

__all__ = ["Batch", "Indices", "MixtureSampler", "TokenStore", "write_store"]
