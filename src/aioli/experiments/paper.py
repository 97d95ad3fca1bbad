"""What the paper prints, to stand next to what is measured here."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from aioli.recipe import parse


@cache
def printed() -> dict[str, Any]:
    """All tables, by experiment."""
    text = (resources.files("aioli.experiments") / "paper.yaml").read_text(encoding="utf-8")
    return dict(parse(text, "paper.yaml"))


def value(experiment: str, kind: str, row: str | None, setting: str) -> Any:
    """One entry: of a method or a law in a setting; None where the paper has none."""
    table = printed().get(experiment, {})
    if setting not in table.get("settings", ()):
        return None
    found = table.get(kind, {})
    if row is not None:
        found = found.get(row)
    return found[table["settings"].index(setting)] if found else None
