"""Carry out an experiment in one setting: from its recipe to what is written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aioli import __version__
from aioli.analysis.asking import ask, found, on_one_schedule
from aioli.analysis.parameters import METHODS
from aioli.config import content_hash
from aioli.data.store import TokenStore
from aioli.experiments import stores
from aioli.experiments.catalogue import MOVING, Experiment
from aioli.experiments.downstream import accuracies
from aioli.experiments.kept import Kept, kept
from aioli.experiments.profiles import Profile
from aioli.experiments.record import made
from aioli.experiments.room import ranked
from aioli.experiments.settings import SLIMPAJAMA, SWEEP, Setting
from aioli.methods import create
from aioli.policies import Static
from aioli.recipe import build
from aioli.registry import Plan, settings_of
from aioli.report.trace import Trace
from aioli.runs.comparison import BASE, Comparison, compare
from aioli.runs.conducting import Asked, Carried
from aioli.runs.job import RESULTS, Setup
from aioli.runs.spec import Problem, Run
from aioli.runs.store import RunStore
from aioli.train.layout import MODEL
from aioli.train.recipe import ModelChoice, TrainRecipe

PYTHIA = {"half-trained": "step72000", "trained": "step143000"}
"""Revisions of Pythia-160M that the paper begins with (Appendix C.1.1)."""

Conduct = Callable[[Sequence[Asked], Setup, Setup], list[Carried]]


@dataclass(frozen=True)
class Bench:
    """What experiments are carried out with."""

    profile: Profile
    corpus: TokenStore
    runs: RunStore
    place: Path
    """Where data is made."""
    conduct: Conduct
    instructions: Callable[[], TokenStore]
    """The instruction tasks, when they are needed."""
    local: bool = False
    """Whether the groups are those that every machine has."""
    gpu: bool | None = None

    def measure(
        self, experiment: Experiment, setting: Setting, seeds: int, recorded: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Train what it takes and say what came of it, as plain JSON.

        `recorded`: what was found before, of which methods that have not changed are kept."""
        began = time.monotonic()
        recipe = self.recipe(experiment, setting)
        over = range(experiment.count(seeds))
        if experiment.study is not None:
            content = self._study(experiment, setting, recipe, over)
        else:
            each = self._each(replace(experiment, name=experiment.like or experiment.name), setting)
            old = kept(recorded or {}, each, over) if experiment.name != "downstream" else Kept()  # needs the models
            content = self._comparison(experiment, setting, recipe, over, old)
            content |= {"each": each, "kept": old.to_json()}
        train = recipe.train.model_dump(mode="json", exclude_defaults=True)
        about = {"model": setting.start or words_of(recipe.model), "train": train, "budget": recipe.budget}
        return {
            "groups": recipe.data.groups or list(TokenStore(recipe.data.store).groups),
            "seeds": list(range(experiment.count(seeds))),
            "asked": self.asked(experiment, setting, seeds),
            "recipe": about,
            "made": made(TokenStore(recipe.data.store), time.monotonic() - began),
            **content,
        }

    def asked(self, experiment: Experiment, setting: Setting, seeds: int) -> str:
        """A hash of all that decides what is found: what has it already need not be measured again."""
        methods = {label: _whole(*method) for label, method in experiment.asked(setting, self.profile).items()}
        what = {**self._what(experiment, setting), "seeds": experiment.count(seeds), "methods": methods}
        return content_hash({**what, "longer": experiment.longer} if experiment.longer else what)

    def _each(self, experiment: Experiment, setting: Setting) -> dict[str, str]:
        """By method: a hash of all that decides what is found of it."""
        what = self._what(experiment, setting)
        methods = experiment.asked(setting, self.profile)
        return {label: content_hash({**what, "method": _whole(*method)}) for label, method in methods.items()}

    def _what(self, experiment: Experiment, setting: Setting) -> dict[str, Any]:
        """What decides the results of an experiment, beside its methods and seeds."""
        recipe = recipe_of(experiment, setting, self.profile, str(self._data(setting).path))
        what = {
            "experiment": experiment.name,
            "setting": setting.name,
            "setup": Setup.of(recipe, gpu=self.gpu).content,
            "weights": recipe.data.weights,
            "steps": recipe.train.steps,
            "budget": recipe.budget,
            "study": experiment.study,
            "options": experiment.options(setting, self.profile),
            "studied": [_whole(*each) for each in self._studied(experiment, setting)],
            "results": (__version__, RESULTS),
        }
        if setting.start is not None:
            what["start"] = Setup.of(self._start(setting.start), gpu=self.gpu).content
        return what

    def _studied(self, experiment: Experiment, setting: Setting) -> list[tuple[str, dict[str, Any]]]:
        """The methods that a study looks at, with their settings."""
        if experiment.study != "parameters":
            return []
        return [(n, self.profile.settings(n, "unrestricted", setting)) for n in METHODS]

    def recipe(self, experiment: Experiment, setting: Setting) -> TrainRecipe:
        """What is trained, on which data."""
        start = self._trained(setting.start) if setting.start is not None and self.profile.mini else None
        return recipe_of(experiment, setting, self.profile, str(self._data(setting).path), start)

    def _data(self, setting: Setting) -> TokenStore:
        store = self.instructions() if setting.data == "instructions" else self.corpus
        if setting.scarce is None:
            return store
        return stores.scarce(store, setting.groups, setting.scarce, self.place)

    def _trained(self, start: str) -> str:
        """A model that is trained here on all groups, for runs that do not begin afresh."""
        setup = Setup.of(self._start(start), gpu=self.gpu)
        carried = self.conduct([Asked(BASE, create(BASE), setup.problem(0))], setup, setup)[0]
        if carried.final is None or carried.error is not None:
            raise ValueError(f"the {start} model could not be trained: {carried.error}")
        return str(self.runs.run_folder(carried.final.key) / MODEL)

    def _start(self, start: str) -> TrainRecipe:
        everything = SLIMPAJAMA.local() if self.local else SLIMPAJAMA
        plain = {**self.profile.recipe(everything), "data": data_of(everything, str(self.corpus.path))}
        if start == "half-trained":
            whole = plain["train"]["steps"]
            plain["train"] = {**plain["train"], "horizon": whole, "steps": whole // 2}
        return build(TrainRecipe, plain, start)

    def _comparison(
        self, experiment: Experiment, setting: Setting, recipe: TrainRecipe, seeds: range, old: Kept
    ) -> dict[str, Any]:
        final, proxy = Setup.of(recipe, gpu=self.gpu), Setup.of(recipe, proxy=True, gpu=self.gpu)
        methods = experiment.asked(setting, self.profile)
        asked = [
            Asked(label, create(name, **settings), final.problem(seed))
            for seed in seeds
            for label, (name, settings) in methods.items()
            if label not in old.rows
        ]
        carried = self.conduct(asked, final, proxy) if asked else []
        result = compare(
            carried, self.runs, final, proxy, recipe.budget, {name: old.rows.get(name) for name in methods}
        )
        content: dict[str, Any] = {
            "methods": {label: {"method": name, "settings": given} for label, (name, given) in methods.items()},
            "comparison": result.to_json(),
        }
        if SWEEP in methods and experiment.budget == "unrestricted":
            best, failed = (old.best, 0) if SWEEP in old.rows else self._best(carried, final, proxy)
            content["ranked"] = ranked(_losses(result), BASE, best)
            content["room_failed"] = failed
        if experiment.longer:
            same = old.longer is not None and old.longer["share"] == experiment.longer
            content["longer"] = old.longer if same else self._longer(recipe, experiment.longer, seeds)
        if experiment.name == "downstream":
            content["downstream"] = self._downstream(carried, recipe)
        if experiment.name == "proportions":
            moving = [Asked(n, create(methods[n][0], **methods[n][1]), final.problem(0)) for n in MOVING]
            content["trajectories"] = self._trajectories(self.conduct(moving, final, proxy))
        return content

    def _best(self, carried: Sequence[Carried], final: Setup, proxy: Setup) -> tuple[dict[int, float], int]:
        """The mixture that each seed's sweep would choose, trained with the seed before it: losses by that seed, and
        how many of these runs failed. Not the seed after it, with which sweeps of two groups try the centre again."""
        chosen = {
            each.asked.problem.seed: each.final.run for each in carried if each.asked.label == SWEEP and each.final
        }
        seeds = sorted(chosen)
        if len(seeds) < 2:
            return {}, 0
        before = dict(zip(seeds, [seeds[-1], *seeds[:-1]], strict=True))
        asked = [Asked(BASE, Fixed(run), final.problem(before[seed])) for seed, run in chosen.items()]
        every = self.conduct(asked, final, proxy)
        done = [each for each in every if each.error is None]
        found = _losses(compare(done, self.runs, final, proxy, final.recipe.budget)).get(BASE, {}) if done else {}
        return found, len(every) - len(done)

    def _longer(self, recipe: TrainRecipe, share: float, seeds: range) -> dict[str, Any]:
        """What stratified loses when it is trained longer."""
        train = recipe.train.model_copy(update={"steps": round((1 + share) * recipe.train.steps)})
        setup = Setup.of(recipe.model_copy(update={"train": train}), gpu=self.gpu)
        carried = self.conduct([Asked(BASE, create(BASE), setup.problem(seed)) for seed in seeds], setup, setup)
        found = _losses(compare(carried, self.runs, setup, setup, recipe.budget)).get(BASE, {})
        return {"share": share, "losses": found}

    def _downstream(self, carried: Sequence[Carried], recipe: TrainRecipe) -> dict[str, Any]:
        """Accuracies of all final models."""
        models: dict[str, dict[int, Path]] = {}
        for each in carried:
            if each.final is not None and each.error is None:
                folder = self.runs.run_folder(each.final.key) / MODEL
                models.setdefault(each.asked.label, {})[each.asked.problem.seed] = folder
        store = TokenStore(recipe.data.store)
        place = self.place / f"tasks-{store.fingerprint[:8]}"
        return accuracies(models, store, recipe.data.groups, place, self.profile.mini)

    def _trajectories(self, carried: Sequence[Carried]) -> dict[str, Any]:
        """How the mixtures of the first seed's runs change."""
        paths = {}
        for each in carried:
            if each.final is not None and each.error is None:
                path = Trace(self.runs.run_folder(each.final.key)).read().proportions
                if len(path.steps) > 1:
                    paths[each.asked.label] = {"steps": path.steps, "proportions": path.values}
        return paths

    def _study(self, experiment: Experiment, setting: Setting, recipe: TrainRecipe, seeds: range) -> dict[str, Any]:
        assert experiment.study is not None
        setup = Setup.of(on_one_schedule(recipe), gpu=self.gpu)
        methods = [(n, create(n, **given)) for n, given in self._studied(experiment, setting)] or None
        asked = ask(experiment.study, setup, self.runs, seeds, methods, **experiment.options(setting, self.profile))
        analysis = found(self.conduct([asked], setup, setup)[0])
        tables = [{"title": t.title, "header": t.header, "rows": t.rows} for t in analysis.tables]
        return {"analysis": analysis.data, "words": list(analysis.words), "tables": tables}


class Fixed:
    """A mixture that somebody else has chosen, as a method."""

    own, name = False, "fixed"

    def __init__(self, run: Run) -> None:
        assert isinstance(run.rules, Static)
        self.proportions = run.rules.proportions

    def plan(self, problem: Problem) -> Plan:
        """Train it."""
        yield from ()
        return problem.final_static(self.proportions)


def recipe_of(
    experiment: Experiment, setting: Setting, profile: Profile, store: str, trained: str | None = None
) -> TrainRecipe:
    """What is trained; `trained`: the model that the small profile begins with, where it does not begin afresh."""
    plain = {**profile.recipe(setting, experiment.larger), "data": data_of(setting, store)}
    plain["budget"] = experiment.budget
    if setting.start is not None and not profile.mini:
        plain["model"] = {"name": "EleutherAI/pythia-160m", "revision": PYTHIA[setting.start]}
    elif trained is not None:
        plain["model"] = {"name": trained}
    return build(TrainRecipe, plain, experiment.name)


def _whole(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """A method with all its settings, those that it has by default among them."""
    known = {key: repr(p.default) for key, p in settings_of("aioli" if name.startswith("aioli+") else name).items()}
    base = _whole(name.removeprefix("aioli+"), given.get("base", {})) if name.startswith("aioli+") else None
    return {"name": name, "settings": {**known, **{key: repr(value) for key, value in given.items()}}, "base": base}


def words_of(model: ModelChoice) -> str:
    """A model in a few words."""
    changes = "".join(f", {name}={value}" for name, value in model.config.items())
    return model.preset + changes if model.preset is not None else f"{model.name}, {model.revision}"


def data_of(setting: Setting, store: str) -> dict[str, Any]:
    """The data of a recipe."""
    found: dict[str, Any] = {"store": store, "groups": list(setting.groups)}
    if setting.targets:
        found["targets"] = list(setting.targets)
    if setting.weights:
        found["weights"] = dict(setting.weights)
    return found


def _losses(result: Comparison) -> dict[str, dict[int, float]]:
    return {score.method: {row.seed: row.loss for row in score.rows} for score in result.scores if score.rows}
