"""What a line of a journal must hold, so that whoever shows a run can rely on it.

In: a line as it was read, and the first line of its journal. A field that is missing or of another kind is refused by
its name; fields that are not named here are left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

WORDS = ("method", "model", "data", "aioli")
COUNTS = ("steps", "batch", "context", "parameters", "seed")
HIGHEST = 1 << 53
"""No count is as large as that."""


def check(line: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Refuse a line that is not as it should be; `about` is the first line, empty before that has been read."""
    kind = line["kind"]
    if kind == "run":
        _run(line)
    elif kind in _KINDS:
        if not about:
            raise ValueError("its first line does not say what the run is")
        _KINDS[kind](line, about)


def _run(line: Mapping[str, Any]) -> None:
    for name in ("groups", "targets"):
        _names(line, name)
    for name in WORDS:
        if not isinstance(line.get(name), str):
            raise ValueError(f"{name} is no word")
    for name in COUNTS:
        _count(line, name)
    _count({"first": 0, **line}, "first")


def _segment(line: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    if _count(line, "begin") > _count(line, "end"):
        raise ValueError(f"begin={line['begin']} is after end={line['end']}")
    if not isinstance(line.get("tag"), str):
        raise ValueError("tag is no word")
    _numbers(line.get("proportions"), "proportions", len(about["groups"]))
    values = _fields(line, "values")
    if "val_loss" in values:
        _numbers(values["val_loss"], "values.val_loss", len(about["targets"]), gaps=True)
    seconds = _fields(line, "seconds")
    for name in ("train", "probe"):
        _number(seconds.get(name), f"seconds.{name}")
    A = _fields(line, "report").get("A")
    if A is not None:
        if not isinstance(A, list) or not all(isinstance(row, list) for row in A):
            raise ValueError("report.A is no table")
        for row in A:
            _numbers(row, "report.A", len(row), gaps=True)


def _look(line: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    _count(line, "step")
    _number(line.get("loss"), "loss", gaps=True)
    _numbers(line.get("val_loss"), "val_loss", len(about["targets"]), gaps=True)


def _result(line: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """How a run ended; `about` names its targets."""
    _count(line, "steps")
    for split in ("val", "test"):
        if split == "val" or split in line:
            found = _fields(line, split)
            losses = _fields(found, "loss")
            if set(losses) != set(about["targets"]):
                raise ValueError(f"{split}.loss does not name the targets")
            for name, value in (*losses.items(), ("mean_loss", found.get("mean_loss"))):
                _number(value, f"{split}.{name}")
    for part in ("realised", "mean_proportions", "seconds"):
        for name, value in _fields(line, part).items() if part != "mean_proportions" or part in line else ():
            _number(value, f"{part}.{name}")


def check_result(result: Any) -> None:
    """Refuse a result that is not whole; it names its targets itself."""
    if not isinstance(result, Mapping):
        raise ValueError("it holds no fields")
    _names(result, "targets")
    _result({"steps": 0, **result}, result)
    if set(_fields(result, "realised")) != set(_fields(result, "mean_proportions")):
        raise ValueError("realised and mean_proportions name different groups")


_KINDS = {"segment": _segment, "look": _look, "result": _result}


def _fields(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = line.get(name)
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} holds no fields")
    return found


def _names(line: Mapping[str, Any], name: str) -> None:
    found = line.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{name} is no list of names")
    if len(set(found)) < len(found):
        raise ValueError(f"{name} names one twice")


def _count(line: Mapping[str, Any], name: str) -> int:
    found = line.get(name)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < HIGHEST:
        raise ValueError(f"{name} is no whole number")
    return found


def _numbers(found: Any, name: str, count: int, gaps: bool = False) -> None:
    if not isinstance(found, list) or len(found) != count:
        raise ValueError(f"{name} is no list of {count} numbers")
    for value in found:
        _number(value, name, gaps)


def _number(value: Any, name: str, gaps: bool = False) -> None:
    """A finite number; with `gaps` also null, which is how a journal writes what is none."""
    if value is None and gaps:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf or abs(value) > 1e300:
        raise ValueError(f"{name} is no number")
