"""Sizes of models that are built offline. Needs no torch."""

from __future__ import annotations

from pathlib import Path

PRESETS: dict[str, tuple[int, int, int, int]] = {
    "tiny": (2, 64, 4, 256),
    "tiny-128": (4, 128, 4, 512),
    "tiny-256": (6, 256, 8, 1024),
    "pythia-14m": (6, 128, 4, 512),
    "pythia-31m": (6, 256, 8, 1024),
    "pythia-70m": (6, 512, 8, 2048),
    "pythia-160m": (12, 768, 12, 3072),
    "pythia-410m": (24, 1024, 16, 4096),
    "pythia-1b": (16, 2048, 8, 8192),
    "pythia-1.4b": (24, 2048, 16, 8192),
}
"""Layers, width, heads, and width of the feed-forward layers; Pythia's as published (Biderman et al., 2023)."""


def check_preset(name: str, field: str = "model.preset") -> None:
    """Refuse a size that is not known."""
    if name not in PRESETS:
        hint = f"; for the model in that directory, model.name={name}" if Path(name).is_dir() else ""
        raise ValueError(f"{field}={name!r} is not one of {', '.join(PRESETS)}{hint}")
