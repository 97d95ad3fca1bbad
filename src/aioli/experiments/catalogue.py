"""Every table and figure of the paper as an experiment: which settings, which methods or which study."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aioli.config import parse_settings
from aioli.experiments import settings as data
from aioli.experiments.profiles import Profile
from aioli.experiments.settings import Setting
from aioli.options import nearest

ONE_SEED = ("greedy", "a-star", "interactions")
OFFLINE = ("grid-search", "dml", "skill-it", "doremi", "doge")


@dataclass(frozen=True)
class Experiment:
    """Something that the paper measures, or that we measure beside it."""

    name: str
    about: str
    shows: str
    """What of the paper it repeats."""
    settings: tuple[Setting, ...]
    methods: tuple[str, ...] = ()
    """For comparisons: methods by name; settings after a colon come on top of the profile's."""
    study: str | None = None
    """For studies: which of `aioli analyze`."""
    budget: str = "unrestricted"
    larger: bool = False
    mini: dict[str, Any] = field(default_factory=dict)
    """Options of the study in the small profile."""
    paper: dict[str, Any] = field(default_factory=dict)
    """In the paper's, where they are not what the study does by itself."""
    needs: str = ""
    """What it needs beyond the data."""

    only_first: tuple[str, ...] = ()
    """Methods that are tried in the first setting only."""
    longer: float = 0.0
    """How many more steps, as a share, stratified is trained with as well: what extra cost could buy instead."""
    like: str | None = None
    """The experiment whose comparison it is, with a closer look: what is recorded of that is not measured again."""

    def asked(self, setting: Setting, profile: Profile) -> dict[str, tuple[str, dict[str, Any]]]:
        """By label: the method and its settings."""
        found = {}
        for label in self.methods:
            if label in self.only_first and setting not in (self.settings[0], self.settings[0].local()):
                continue
            name, _, tail = label.partition(":")
            chosen = {**profile.settings(name, self.name, setting), **parse_settings(tail)}
            if tail.startswith("delta"):  # the paper tells delta by group
                chosen["delta"] *= setting.m
            found[label] = (name, chosen)
        return found

    def count(self, seeds: int) -> int:
        """Seeds that are really used: some studies look at one."""
        return 1 if self.study in ONE_SEED else seeds

    def options(self, setting: Setting, profile: Profile) -> dict[str, Any]:
        """Of the study."""
        found = dict(self.mini if profile.mini else self.paper)
        if profile.mini and setting.m > 3 and self.study == "laws":
            found["sweep"] = 20
        if self.name == "law-instruction":
            found |= {"sweep": 50, "starts": 3 if profile.mini else 10, "alpha": 1.5}
        return found


MOVING = ("skill-it", "aioli", "aioli-pooled", "aioli-fork")
"""Methods whose final run has a mixture that changes."""
SENSITIVITY = (
    *(f"aioli:eta={value}" for value in (0.1, 0.2, 0.3, 0.5)),
    *(f"aioli:delta={value}" for value in (0.064, 0.096, 0.128)),
    *(f"aioli:gamma={value}" for value in ("null", 0.1, 0.5)),
)
LATER = {"at": (0.25,), "ahead": 75, "starts": 1}
"""From a trained model: forks at a quarter of the run, for a quarter."""
EXPERIMENTS = {
    each.name: each
    for each in (
        Experiment(
            "unrestricted",
            "all methods with up to ten extra runs",
            "Section 6.1, Table 2",
            data.IN_DOMAIN,
            ("stratified", *OFFLINE, "aioli", "aioli-pooled", "aioli-fork"),
        ),
        Experiment(
            "restricted",
            "methods on half a run of extra steps, and Aioli added to each",
            "Section 6.2, Table 3",
            data.IN_DOMAIN,
            ("stratified", *OFFLINE, *(f"aioli+{name}" for name in OFFLINE)),
            budget="restricted",
        ),
        Experiment(
            "ablations",
            "Aioli with A learned once, and with a diagonal A",
            "Appendix F.2",
            data.IN_DOMAIN,
            ("stratified", "aioli", "aioli-static", "aioli-diagonal"),
        ),
        Experiment(
            "sensitivity",
            "Aioli with other step sizes η, shares of rounds δ and averages γ",
            "Appendix F.3",
            (data.A_SE, data.A_B_SE),
            ("stratified", *SENSITIVITY),
        ),
        Experiment(
            "ood",
            "towards a target that is not trained on",
            "Appendix F.5",
            data.TOWARDS,
            ("stratified", "grid-search", "dml", "skill-it", "doge", "aioli-ood", "aioli-pooled", "aioli-fork"),
            only_first=("skill-it", "doge"),
            longer=0.7,
        ),
        Experiment(
            "room",
            "settings of ours with something to win: weights, overlaps, a small group",
            "–",
            data.ROOMY,
            ("stratified", "grid-search", "dml", "aioli", "aioli-pooled", "aioli-fork"),
            longer=0.7,
        ),
        Experiment(
            "larger-model",
            "stratified, DoGE and Aioli with a larger model",
            "Appendix F.4",
            (data.A_SE, data.A_B_SE),
            ("stratified", "doge", "aioli", "aioli-pooled", "aioli-fork"),
            larger=True,
        ),
        Experiment(
            "proportions",
            "which mixtures methods choose, and how Aioli's change over time",
            "Appendix E, Table of proportions",
            data.IN_DOMAIN,
            ("stratified", *OFFLINE, "aioli", "aioli-pooled", "aioli-fork"),
            like="unrestricted",
        ),
        Experiment(
            "downstream",
            "tasks instead of perplexity",
            "Appendix F.1",
            (data.SLIMPAJAMA,),
            ("stratified", *OFFLINE, "aioli", "aioli-pooled", "aioli-fork"),
            needs="the extra eval",
        ),
        Experiment(
            "law-fit",
            "static and dynamic mixing laws over sweeps",
            "Section 4.2, Appendix C.1",
            data.IN_DOMAIN,
            study="laws",
            mini={"starts": 3},
        ),
        Experiment(
            "law-checkpoints",
            "the same from models that are trained already",
            "Appendix C.1.1",
            data.CHECKPOINTS,
            study="laws",
            mini=LATER,
            paper={"at": (0.25,), "ahead": 500, "starts": 1},
        ),
        Experiment(
            "law-instruction",
            "the same on nine instruction tasks",
            "Appendix C.1.2",
            data.INSTRUCTIONS,
            study="laws",
            mini={"at": (0.5,), "ahead": 20},
            paper={"at": (0.5,), "ahead": 100},
            needs="instruction tasks (--instructions)",
        ),
        Experiment(
            "law-nonlinear",
            "groups for which the laws do not hold",
            "Appendix C.1.1, Figure 5",
            data.NON_LINEAR,
            study="laws",
            mini={"starts": 3},
        ),
        Experiment(
            "parameters",
            "how close each method's A is to A*, against what it gains",
            "Section 4.3, Figure 3",
            data.IN_DOMAIN[:5],
            study="parameters",
        ),
        Experiment(
            "a-star",
            "does A* change its order, is its diagonal enough",
            "Appendix C.2.1",
            (data.A_SE, data.GH_C4),
            study="a-star",
            mini={"at": (0.4, 0.8), "starts": 3},
            paper={"at": (0.4, 0.8)},
        ),
        Experiment(
            "greedy",
            "two rounds: the best pair of mixtures against the best one at a time",
            "Section 4.4, Appendix C.3",
            (data.A_SE, data.GH_C4, data.B_SE),
            study="greedy",
            mini={"sweep": 5},
        ),
    )
}


def find(names: list[str]) -> list[Experiment]:
    """Experiments by name; `all` is every one."""
    if "all" in names:
        return list(EXPERIMENTS.values())
    for name in names:
        if name not in EXPERIMENTS:
            known = f"there are {', '.join(EXPERIMENTS)}, or all"
            raise ValueError(f"there is no experiment {name!r}{nearest(name, EXPERIMENTS)}; {known}")
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]
