"""What one method found: its mixture, or the path of it, what was predicted and measured, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aioli.policies import Static
from aioli.report.trace import Curve, Trace
from aioli.runs.conducting import Carried
from aioli.runs.store import RunStore
from aioli.train.records import probe_share


@dataclass(frozen=True)
class Mixture:
    """A method's answer."""

    method: str
    about: str
    groups: list[str]
    targets: list[str]
    steps: int
    proportions: dict[str, float]
    """The mixture, or the mean of one that moved."""
    path: Curve | None
    """How it moved: the mixture in force up to each step."""
    predicted: dict[str, float] | None
    """What the method's law says of each target, at the length (and for the model) of the extra runs."""
    predicted_steps: int | None
    predicted_model: str | None
    """The model of the extra runs, where it is not that of the final one."""
    measured: dict[str, dict[str, float]]
    """Losses of the final run by split and target; empty if it was not trained."""
    cost: dict[str, Any]
    key: str
    """The final run in the store."""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON."""
        plain = {**vars(self)}
        if self.path is not None:
            pairs = zip(self.path.steps, self.path.values, strict=True)
            plain["path"] = [{"until": step, "proportions": list(values)} for step, values in pairs]
        return plain


def mixture(carried: Carried, store: RunStore) -> Mixture:
    """What a method found."""
    final, problem = carried.final, carried.asked.problem
    assert final is not None
    data, rules = final.setup.recipe.data, final.run.rules
    result = carried.result
    if isinstance(rules, Static):
        proportions, path = dict(zip(data.groups, rules.proportions, strict=True)), None
    elif result is None:
        raise ValueError(
            f"{carried.asked.label} moves the mixture while the final run trains; there is none without it"
        )
    else:
        proportions = dict(result["mean_proportions"])
        path = Trace(store.run_folder(final.key)).read().proportions
    expected = final.run.expected
    steps = [job.run.task.steps for job in carried.extra]
    size = final.setup.recipe.model.preset or final.setup.recipe.model.name
    return Mixture(
        method=carried.asked.label,
        about=f"{', '.join(data.groups)}"
        + ("" if data.targets == data.groups else f" → {', '.join(data.targets)}")
        + f" · {size}, {problem.steps:,} steps, seed {problem.seed}",
        groups=data.groups,
        targets=data.targets,
        steps=problem.steps,
        proportions=proportions,
        path=path,
        predicted=None if expected is None else dict(zip(data.targets, expected, strict=True)),
        predicted_steps=max(steps) if expected is not None and steps else None,
        predicted_model=_proxy(carried),
        measured={split: dict(result[split]["loss"]) for split in ("val", "test") if result and split in result},
        cost=_cost(carried, store),
        key=final.key,
    )


def _proxy(carried: Carried) -> str | None:
    """The model that predictions are of, if it is another one."""
    assert carried.final is not None
    for job in carried.extra[:1]:
        if job.setup.content["model"] != carried.final.setup.content["model"]:
            return str(job.about()["model"])
    return None


def _cost(carried: Carried, store: RunStore) -> dict[str, Any]:
    assert carried.final is not None
    keys = [*(job.key for job in carried.extra), *([] if carried.result is None else [carried.final.key])]
    seconds = store.seconds(keys)
    return {
        "extra_runs": len(carried.extra),
        "extra_steps": sum(job.run.task.steps for job in carried.extra),
        **seconds,
        "probing": probe_share(seconds),
    }
