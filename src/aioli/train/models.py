"""Models: GPT-NeoX by preset, built offline, or any causal language model of transformers by name or path."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, GPTNeoXConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from aioli.data.store import sha256_of
from aioli.data.tokenizer import why_not
from aioli.files import disk_trouble, new_directory, read_json, readable, sync_directory, sync_tree, write_json
from aioli.train.presets import PRESETS, check_preset

PYTHIA_VOCABULARY = 50304
CHECKSUMS = "checksums.json"
LOADING = frozenset(
    {
        *(
            "trust_remote_code",
            "code_revision",
            "auto_map",
            "attn_implementation",
            "_attn_implementation",
            "use_kernels",
        ),
        *("use_safetensors", "weights_only", "state_dict", "config", "adapter_kwargs", "quantization_config"),
        *("device_map", "token", "use_auth_token", "proxies", "cache_dir", "local_files_only", "revision", "subfolder"),
    }
)
"""Arguments of `from_pretrained` that choose which code or files are used: not for a recipe's `model.config`."""
_CAUSAL: Any = AutoModelForCausalLM


def preset_config(preset: str, vocabulary: int, context: int, overrides: Mapping[str, Any]) -> GPTNeoXConfig:
    """The configuration of a preset; `tiny` ones have just the store's vocabulary, Pythia's at least its own."""
    layers, width, heads, inner = PRESETS[preset]
    settings: dict[str, Any] = {
        "vocab_size": vocabulary if preset.startswith("tiny") else max(PYTHIA_VOCABULARY, vocabulary),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": max(context, 64 if preset.startswith("tiny") else 2048),
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
        **overrides,
    }
    return GPTNeoXConfig(**settings)


def build_model(
    preset: str | None,
    name: str | None,
    *,
    vocabulary: int,
    context: int,
    seed: int,
    revision: str | None = None,
    scratch: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> PreTrainedModel:
    """A model in float32 with a vocabulary and positions that hold the data; random weights follow from the seed."""
    torch.manual_seed(seed)
    changes = dict(overrides or {})
    if preset is not None:
        check_preset(preset)
        config: Any = preset_config(preset, vocabulary, context, changes)
        model = _CAUSAL.from_config(config, attn_implementation="sdpa")
    else:
        model = _named(str(name), revision or "main", scratch, changes)
    held, positions = model.config.vocab_size, getattr(model.config, "max_position_embeddings", context)
    if held < vocabulary:
        raise ValueError(
            f"the model knows {held} tokens, but the data has {vocabulary}; was it made with its tokenizer?"
        )
    if positions < context:
        raise ValueError(f"the model takes sequences of {positions} tokens, but the data has {context}; lower context")
    model.config.use_cache = False
    found: PreTrainedModel = model.float()
    return found


def load_model(folder: str) -> PreTrainedModel:
    """A model that a run has kept; a file of it that was changed is refused by its name."""
    check_model(Path(folder))
    with _without_bars():
        found: PreTrainedModel = _CAUSAL.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, use_safetensors=True
        )
    return found


def check_model(folder: Path) -> None:
    """Compare a model that a run has kept with its checksums; one from elsewhere has none."""
    sums = folder / CHECKSUMS
    if not sums.is_file():
        return
    found = read_json(sums)
    if not isinstance(found, dict) or not isinstance(found.get("sha256"), dict):
        raise ValueError(f"{sums} is damaged; remove it to use the model unchecked")
    for name, wanted in found["sha256"].items():
        file = folder / Path(name).name
        if not file.is_file() or sha256_of(file) != wanted:
            raise ValueError(f"{file} is missing or does not match its checksum; train the run again")


def save_model(model: Any, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Keep a model, with these weights, in the form that transformers loads; complete or not there at all."""
    for old in folder.parent.glob(f".{folder.name}.*"):  # left by a process that was killed
        shutil.rmtree(old, ignore_errors=True)
    building = new_directory(folder)
    try:
        with _without_bars():
            model.save_pretrained(building, state_dict=weights)
    except SafetensorError as error:
        raise disk_trouble(error) or error from None
    sums = {file.name: sha256_of(file) for file in sorted(building.iterdir())}
    write_json(building / CHECKSUMS, {"sha256": sums})
    readable(building)
    sync_tree(building)
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(building, folder)
    sync_directory(folder.parent)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Without the progress bars of transformers, which would run through ours."""
    logging: Any = transformers_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _named(name: str, revision: str, scratch: bool, changes: dict[str, Any]) -> Any:
    refused = sorted(LOADING & changes.keys())
    if refused:
        raise ValueError(f"model.config.{refused[0]} is about how a model is loaded, not part of its configuration")
    try:
        if scratch:
            config = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=False, **changes)
            return _CAUSAL.from_config(config)
        with _without_bars():
            return _CAUSAL.from_pretrained(name, revision=revision, trust_remote_code=False, **changes)
    except (OSError, ValueError, KeyError) as error:
        if name.startswith(("/", ".", "~")) and not Path(name).is_dir():
            raise ValueError(f"cannot load model {name!r}: there is no such directory") from None
        raise ValueError(
            f"cannot load model {name!r}: {why_not(error)}; give a directory, a name on the hub, or a preset"
        ) from None
