"""Recipes: YAML in, typed settings out, and one line for everything that is wrong. Needs pydantic and PyYAML.

A wrong field is refused with its path, its value, what is allowed, and the nearest name.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

try:
    import yaml
    from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
except ImportError as error:
    raise ValueError(
        f"recipes need {error.name}: pip install 'aioli-mix[data]', or in a clone pip install -c constraints.txt -e "
        "'.[data]'"
    ) from None

from aioli.files import read_text

__all__ = ["Field", "Section", "build", "describe", "field_validator", "model_validator", "override", "parse", "read"]


class Section(BaseModel):
    """Part of a recipe: frozen, and no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, protected_namespaces=())
    shorthand: ClassVar[str] = "name"
    """The field that a plain string stands for."""


LARGEST, NODES = 1 << 25, 3_000_000
"""Bytes of the largest recipe, and values in it with all aliases unfolded."""

S = TypeVar("S", bound=Section)


def read(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """A recipe as plain data, from a YAML file or a mapping."""
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    try:
        text = read_text(path, LARGEST)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the recipe {path}: {getattr(error, 'strerror', None) or error}") from None
    found = parse(text, str(path))
    if found is None:
        raise ValueError(f"{path} is empty; a recipe is `name: value` lines")
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a recipe: it must be `name: value` lines, not {type(found).__name__}")
    return found


def parse(text: str, where: str) -> Any:
    """YAML, without any tag that builds objects, and without aliases that unfold into more than could be written."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _unfolded(node) > NODES:
            raise ValueError(f"its aliases unfold into more than {NODES:,} values")
        return loader.construct_document(node)
    # a tag such as !!int on something else ends in whatever error its constructor happens to meet
    except (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError, TypeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        strange = isinstance(error, LookupError | AttributeError | TypeError)
        what = "a tag does not fit its value" if strange else str(getattr(error, "problem", None) or error)
        raise ValueError(
            f"{where}{line} is not YAML: {what}{'; use spaces' if chr(92) + 't' in what else ''}"
        ) from None


def _unfolded(node: Any, known: dict[int, float] | None = None) -> float:
    """How many values there are when every alias stands for what it names; one that names itself has no end."""
    known = {} if known is None else known
    if id(node) not in known:
        known[id(node)] = math.inf
        if isinstance(node, yaml.MappingNode):
            _no_name_twice(node)
        below = node.value if isinstance(node, yaml.CollectionNode) else ()
        inner = (each for pair in below for each in (pair if isinstance(pair, tuple) else (pair,)))
        known[id(node)] = 1 + sum(_unfolded(each, known) for each in inner)
    return known[id(node)]


def _no_name_twice(node: Any) -> None:
    """Of two fields of one name YAML would silently take the last."""
    seen = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands there twice", key.start_mark)
            seen.add((key.tag, key.value))


def override(recipe: dict[str, Any], assignments: Sequence[str], model: type[Section] | None = None) -> dict[str, Any]:
    """Apply `path.to.field=value`; values are YAML, list elements are numbers. With the model, a section that was given
    in its short form, such as `data: store`, is opened up first."""
    result: Any = _copy(recipe)
    # a whole section comes before its fields, wherever it was written: `data.groups=[a] data=store`
    for assignment in sorted(assignments, key=lambda text: text.partition("=")[0].count(".") > 0):
        path, equals, value = assignment.partition("=")
        if not equals or not path:
            raise ValueError(f"{assignment!r} is not of the form field=value")
        _assign(result, path.split("."), parse(value, path), assignment, model)
    return dict(result)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def _assign(place: Any, path: list[str], value: Any, assignment: str, model: type[Section] | None) -> None:
    for depth, name in enumerate(path):
        key: Any = name
        if isinstance(place, list):
            if not name.isdigit() or int(name) >= len(place):
                raise ValueError(f"{assignment!r}: {'.'.join(path[:depth])} has no element {name!r}")
            key = int(name)
        elif model is not None:
            field = model.model_fields.get(name)
            model = None if field is None else _section_of(field.annotation)
        if depth == len(path) - 1:
            place[key] = value
            return
        below = place[key] if isinstance(place, list) else place.get(key)
        if not isinstance(below, dict | list):
            short = "name" if model is None else model.shorthand
            place[key] = below = {short: below} if isinstance(below, str) else {}
        place = below


def build(model: type[S], plain: Mapping[str, Any], where: str = "recipe") -> S:
    """Check a recipe; everything wrong with it is one line each."""
    try:
        return model.model_validate(dict(plain))
    except ValidationError as error:
        lines = [_complaint(model, problem) for problem in error.errors(include_url=False)]
        raise ValueError(f"{where}: " + "\n".join(dict.fromkeys(lines))) from None


def _complaint(model: type[Section], problem: Any) -> str:
    path = [part for part in problem["loc"] if not str(part).startswith("function-")]
    name, value = ".".join(map(str, path)), problem["input"]
    if problem["type"] == "extra_forbidden":
        allowed = list(_fields_at(model, path[:-1]))
        near = difflib.get_close_matches(str(path[-1]), allowed, 1)
        hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(allowed)}"
        if not near and "settings" in allowed:
            hint += f"; a setting of the {path[-2]}: {'.'.join(map(str, path[:-1]))}.settings.{path[-1]}"
        return f"{name}={_short(value)}: no such field; {hint}"
    if problem["type"] == "missing":
        return f"{name}: missing, and it has no default"
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{name}={_short(value)}: {message}" if path else message


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields_at(model: type[Section], path: Sequence[Any]) -> Iterator[str]:
    here: type[Section] | None = model
    for part in path:
        if here is not None and isinstance(part, str) and part in here.model_fields:
            here = _section_of(here.model_fields[part].annotation)
    yield from () if here is None else here.model_fields


def _section_of(annotation: Any) -> type[Section] | None:
    """The section inside an annotation such as `list[Source]` or `Train | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _section_of(inner))), None)


def describe(model: type[Section], prefix: str = "") -> list[tuple[str, str, str]]:
    """Every field as (path, default, meaning), for help texts."""
    rows: list[tuple[str, str, str]] = []
    for name, info in model.model_fields.items():
        inner = _section_of(info.annotation)
        many = str(info.annotation).startswith(("list", "dict"))
        default = (
            "required" if info.is_required() else "" if inner else _short(info.get_default(call_default_factory=True))
        )
        meaning = " ".join((info.description or "").split())
        rows.append((prefix + name, default.replace("None", "-"), meaning))
        if inner is not None:
            rows += describe(inner, f"{prefix}{name}.{'N.' if many else ''}")
    return rows
