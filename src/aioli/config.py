"""Frozen settings to plain JSON and back: how a policy is named in a run, hashed, stored and rebuilt.

Only the classes registered here are ever built from data; nothing is imported or unpickled by name.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import re
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
_CLASSES: dict[str, type[Any]] = {}


def register(cls: type[T]) -> type[T]:
    """Allow a frozen dataclass to be written to and read from a config."""
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is not a dataclass")
    _CLASSES[cls.__name__] = cls
    return cls


def to_plain(value: Any) -> Any:
    """Arrays, tuples, sets and numpy numbers as what JSON has; keys that start with `_` are memos and are left out."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(k): to_plain(v) for k, v in value.items() if not str(k).startswith("_")}
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain(v) for v in value)
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if dataclasses.is_dataclass(value):
        return {k: to_plain(v) for k, v in vars(value).items() if v is not None}
    return value


def to_config(settings: Any) -> dict[str, Any]:
    """A registered frozen dataclass as `{"type": name, field: value…}`."""
    name = type(settings).__name__
    if _CLASSES.get(name) is not type(settings):
        raise ValueError(f"{name} is not registered; decorate it with aioli.config.register")
    config: dict[str, Any] = {"type": name}
    for f in dataclasses.fields(settings):
        if f.init:
            value = getattr(settings, f.name)
            plain = to_config(value) if dataclasses.is_dataclass(value) else to_plain(value)
            if "float" in str(f.type) and isinstance(plain, int) and not isinstance(plain, bool):
                plain = float(plain)  # eta=1 and eta=1.0 are the same setting
            config[f.name] = plain
    return config


def from_config(config: Any) -> Any:
    """The inverse of `to_config`; unknown types and fields are refused by name."""
    if isinstance(config, list):
        return tuple(from_config(v) for v in config)
    if not isinstance(config, dict):
        return config
    name = config.get("type")
    if not isinstance(name, str) or name not in _CLASSES:
        raise ValueError(f"config type {name!r} is not known; known types are {', '.join(sorted(_CLASSES))}")
    cls = _CLASSES[name]
    allowed = {f.name for f in dataclasses.fields(cls) if f.init}
    unknown = sorted(set(config) - allowed - {"type"})
    if unknown:
        raise ValueError(f"{name} has no setting {unknown[0]!r}; it has {', '.join(sorted(allowed))}")
    return cls(**{k: from_config(v) for k, v in config.items() if k != "type"})


def content_hash(plain: Any) -> str:
    """SHA-256 of the canonical JSON text."""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def parse_settings(text: str) -> dict[str, Any]:
    """`eta=0.5,caps=[0.5,1,1]`: values are JSON where they can be, words otherwise."""
    settings: dict[str, Any] = {}
    for part in filter(None, re.split(r",(?![^\[{]*[\]}])", text)):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"setting {part!r} is not KEY=VALUE")
        try:
            settings[key] = None if value == "None" else json.loads(value)
        except json.JSONDecodeError:
            settings[key] = _literal(value)
    return settings


def _literal(text: str) -> Any:
    """A value as Python writes it, such as {'runs': 5}; anything else is a word."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
