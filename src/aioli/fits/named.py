"""Laws by name, as `aioli fit --law` takes them, and as plain JSON."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from typing import Any

import numpy as np

from aioli.config import parse_settings
from aioli.lmo import LinearStatic, LogLinearStatic, TransferPowerLaw, Trees
from aioli.lmo.laws import StaticLaw
from aioli.options import nearest
from aioli.simplex import Array

LAWS: dict[str, type[Any]] = {
    "linear": LinearStatic,
    "log-linear": LogLinearStatic,
    "transfer": TransferPowerLaw,
    "trees": Trees,
}
AUTO = ("linear", "log-linear", "transfer", "transfer:terms=4", "trees")
"""What `auto` chooses from, the simplest first."""
FORMULAS = {
    "linear": "L = c - A p",
    "log-linear": "L = c + b·exp(-A p)",
    "transfer": "L = c + Σ_k b_k·(1 + T_k p)^(-α_k)",
    "trees": "boosted trees",
}


def create_law(text: str, **defaults: Any) -> Any:
    """A law that is not fitted yet, from `log-linear` or `transfer:terms=4`."""
    name, _, tail = text.partition(":")
    if name not in LAWS:
        hint = nearest(name, [*LAWS, "auto"])
        raise ValueError(f"there is no law {name!r}{hint}; there are {', '.join(LAWS)}, and auto")
    allowed = settings_of(LAWS[name])
    settings = {k: v for k, v in defaults.items() if k in allowed} | parse_settings(tail)
    unknown = sorted(set(settings) - set(allowed))
    if unknown:
        raise ValueError(f"law {name} has no setting {unknown[0]!r}; it has {', '.join(allowed)}")
    for key, value in settings.items():
        if not isinstance(value, (int, float)) and not (value is None and key == "huber"):
            raise ValueError(f"{key}={value!r} of law {name} must be a number")
    return LAWS[name](**settings)


def settings_of(law: type[Any]) -> list[str]:
    """The settings of a law."""
    return [f.name for f in dataclasses.fields(law) if f.init]


def candidates() -> list[str]:
    """What `auto` can choose from here."""
    have_trees = importlib.util.find_spec("lightgbm") is not None
    return [name for name in AUTO if name != "trees" or have_trees]


def name_of(law: Any) -> str:
    """A law's name with the settings that are not the default."""
    name = next(name for name, kind in LAWS.items() if isinstance(law, kind))
    plain = LAWS[name]()
    changed = [s for s in settings_of(type(law)) if getattr(law, s) != getattr(plain, s)]
    return name + (":" + ",".join(f"{s}={getattr(law, s):g}" for s in changed) if changed else "")


def law_to_json(law: Any) -> dict[str, Any]:
    """A fitted law; trees are only their settings, and are grown again from the table beside them."""
    name = next(name for name, kind in LAWS.items() if isinstance(law, kind))
    plain: dict[str, Any] = {"name": name, "formula": FORMULAS[name]}
    plain["settings"] = {s: getattr(law, s) for s in settings_of(type(law))}
    if isinstance(law, StaticLaw):
        plain["parameters"] = {a.rstrip("_"): getattr(law, a).tolist() for a in (*law.BY_TERM, *law.BY_TARGET)}
    return plain


def law_from_json(plain: Mapping[str, Any], P: Array, L: Array, weights: Array) -> Any:
    """The law again; refused if its parameters do not fit the table."""
    try:
        name, settings = str(plain["name"]), dict(plain["settings"])
    except (KeyError, TypeError, ValueError):
        raise ValueError("its law has no name and settings") from None
    unknown = sorted(set(settings) - set(settings_of(LAWS[name]))) if name in LAWS else []
    if unknown:
        raise ValueError(f"its law {name} has no setting {unknown[0]!r}")
    law = create_law(name, **settings)
    if not isinstance(law, StaticLaw):
        return law.fit(P, L, weights)
    n, m = L.shape[1], P.shape[1]
    given = plain.get("parameters")
    if not isinstance(given, Mapping):
        raise ValueError("its law has no parameters")
    for attribute in (*law.BY_TERM, *law.BY_TARGET):
        rows = n * law.terms if attribute in law.BY_TERM else n
        shape = (rows, m) if attribute == "A_" else (rows,)
        try:
            value = np.array(given[attribute.rstrip("_")], dtype=np.float64)
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"its law has no parameter {attribute.rstrip('_')}") from None
        if value.shape != shape or not np.isfinite(value).all():
            raise ValueError(f"its parameter {attribute.rstrip('_')} must be finite numbers of shape {shape}")
        setattr(law, attribute, value)
    return law
