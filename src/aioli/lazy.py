"""Names of a package that are loaded when they are used, so that what is heavy waits until then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_from(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: each name from its module."""

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return find
