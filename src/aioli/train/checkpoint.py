"""Checkpoints: complete or absent, checked on loading, and nothing in them is ever executed.

    checkpoints/step-0000500/   model.safetensors  optimizer.safetensors  state.json

Tensors are safetensors; everything else (step, sampler, policy, what a segment has gathered, size of the journal) is
JSON. state.json holds the SHA-256 of the others and is written last; the directory is renamed into place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from aioli.config import content_hash
from aioli.data.store import sha256_of
from aioli.files import disk_trouble, read_json, readable, sync_directory, take_away, write_json
from aioli.train.engine import Engine
from aioli.train.layout import CHECKPOINTS

STATE, FILES = "state.json", ("model.safetensors", "optimizer.safetensors")
_FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save(run: Path, engine: Engine, state: Mapping[str, Any], keep: int) -> None:
    """Write the checkpoint of this step; all ranks call it, the first one writes. The last `keep` stay."""
    model: Any
    optimizer: Any
    model, optimizer = get_state_dict(engine.model, engine.optimizer.optimizer, options=_FULL)
    random, progress = _random_states(engine), engine.state_dict()
    if not engine.accelerator.is_main_process:
        return
    tensors = {f"{name}/{part}": value for name, parts in optimizer["state"].items() for part, value in parts.items()}
    tensors |= random
    folder = run / CHECKPOINTS
    folder.mkdir(exist_ok=True)
    name = f"step-{engine.step:09d}"
    tidy(run, keep)
    building = folder / f".{name}"
    building.mkdir()
    for file, content in zip(FILES, (_distinct(model), tensors), strict=True):
        try:
            save_file({key: value.contiguous() for key, value in content.items()}, building / file)
        except SafetensorError as error:
            raise disk_trouble(error) or error from None
        readable(building / file)
        with (building / file).open("rb+") as written:
            os.fsync(written.fileno())
    sums = {file: sha256_of(building / file) for file in FILES}
    said = {"schema": 1, "sha256": sums, **state, "engine": progress}
    write_json(building / STATE, {**said, "digest": content_hash(said)})
    take_away(folder / name)
    os.replace(building, folder / name)
    sync_directory(folder)
    tidy(run, keep)


def tidy(run: Path, keep: int) -> None:
    """Remove all but the last `keep` checkpoints, and what a process that was killed has left of others."""
    folder = run / CHECKPOINTS
    for old in sorted(folder.glob("step-*"))[:-keep]:
        take_away(old)
    for old in folder.glob(".step-*"):
        shutil.rmtree(old, ignore_errors=True)


def _generators(device: torch.device) -> dict[str, Any]:
    """Whose random state belongs to a run: the CPU's, and that of the device it is trained on."""
    found: dict[str, Any] = {"rng": torch}
    return found if device.type == "cpu" else {**found, "device_rng": torch.get_device_module(device)}


def _random_states(engine: Engine) -> dict[str, torch.Tensor]:
    """A row for each rank."""
    found = {}
    for name, generator in _generators(engine.device).items():
        mine = generator.get_rng_state()[None].to(engine.device)
        found[name] = engine.accelerator.gather(mine).cpu()
    return found


def full_weights(engine: Engine) -> dict[str, torch.Tensor]:
    """The parameters, whole and on the CPU; all ranks call it."""
    found: dict[str, Any] = get_model_state_dict(engine.model, options=_FULL)
    return found


def _distinct(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that share memory are copied: each name stands for itself."""
    seen: set[int] = set()
    found = {}
    for name, value in state.items():
        found[name] = value.clone() if value.data_ptr() in seen else value
        seen.add(value.data_ptr())
    return found


def latest(run: Path) -> Path | None:
    """The newest complete checkpoint of a run."""
    found = sorted((run / CHECKPOINTS).glob("step-*")) if (run / CHECKPOINTS).is_dir() else []
    return found[-1] if found else None


def step_of(path: Path) -> int:
    """The step at which a checkpoint was made."""
    return int(path.name.removeprefix("step-"))


def load(path: Path, engine: Engine) -> dict[str, Any]:
    """Put a checkpoint into an engine; returns its state. A file that was changed is refused by its name."""
    state = read_json(path / STATE)
    said = {key: value for key, value in state.items() if key != "digest"} if isinstance(state, dict) else {}
    if said.get("schema") != 1 or content_hash(said) != state.get("digest"):
        raise ValueError(f"{path / STATE} is damaged; remove {path} to go on from the checkpoint before it")
    for file in FILES:
        if not (path / file).is_file() or sha256_of(path / file) != said["sha256"].get(file):
            raise ValueError(
                f"{path / file} is missing or does not match its checksum; remove {path} to go on from the one before"
            )
    try:
        model, tensors = (load_file(path / file) for file in FILES)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}); remove it to go on from the one before it") from None
    for name, generator in _generators(engine.device).items():
        rows = tensors.pop(name)
        generator.set_rng_state(rows[min(engine.accelerator.process_index, len(rows) - 1)].clone())
    _, current = get_state_dict(engine.model, engine.optimizer.optimizer)
    optimizer: dict[str, Any] = {"state": {}, "param_groups": current["param_groups"]}
    weights: dict[str, Any] = dict(model)
    for key, value in tensors.items():
        name, _, part = key.rpartition("/")
        optimizer["state"].setdefault(name, {})[part] = value
    set_state_dict(
        engine.model, engine.optimizer.optimizer, model_state_dict=weights, optim_state_dict=optimizer, options=_FULL
    )
    engine.load_state_dict(said["engine"])
    return said
