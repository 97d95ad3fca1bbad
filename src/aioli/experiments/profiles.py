"""How large an experiment is: `mini` for two CPU cores, `paper` with the exact settings of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aioli.experiments.settings import Setting

Settings = dict[str, Any]

TUNED: dict[tuple[str, str], Settings] = {
    ("unrestricted", "arxiv/stackexchange"): {"delta": 0.128, "eta": 0.2, "gamma": 0.1},
    ("unrestricted", "github/c4"): {"delta": 0.128, "eta": 0.3, "gamma": 0.5},
    ("unrestricted", "book/stackexchange"): {"delta": 0.128, "eta": 0.1},
    ("unrestricted", "arxiv/book/stackexchange"): {"delta": 0.288, "eta": 0.5},
    ("unrestricted", "commoncrawl/github/wikipedia"): {"delta": 0.288, "eta": 0.3, "gamma": 0.5},
    ("unrestricted", "slimpajama"): {"delta": 0.07, "eta": 0.2, "gamma": 0.1},
    ("restricted", "slimpajama"): {"delta": 0.07, "eta": 0.2, "gamma": 0.1},
    ("ood", "arxiv/book/github → stackexchange"): {"delta": 0.288, "eta": 0.8},
    ("larger-model", "arxiv/stackexchange"): {"delta": 0.192, "eta": 0.5, "gamma": 0.1},
    ("larger-model", "arxiv/book/stackexchange"): {"delta": 0.288, "eta": 0.1, "gamma": 0.5},
}
"""What the paper tuned for Aioli (its Appendix E, F.4 and F.5); elsewhere eta = 0.2 and no average over rounds."""
BASELINES: dict[tuple[str, str, str], Settings] = {
    ("skill-it", "unrestricted", "github/c4"): {"rounds": 5, "eta": 0.1},
    ("skill-it", "unrestricted", "book/stackexchange"): {"eta": 0.8},
    ("doge", "unrestricted", "github/c4"): {"eta": 0.1},
    ("doge", "restricted", "github/c4"): {"eta": 0.1},
    ("doge", "unrestricted", "slimpajama"): {"eta": 0.1},
    ("doge", "restricted", "slimpajama"): {"eta": 0.03},
}
"""What it changed for others (Appendix E)."""
ONLINE = ("aioli", "aioli-diagonal", "aioli-ood", "aioli-pooled")
OURS = ("aioli-pooled", "aioli-fork")
"""Which have their defaults in every setting."""
MINI_ROUNDS = {"aioli-pooled": 10}
"""Of the small profile; others have 5, for rounds of 200 steps and intervals of at least four."""
SMALL: dict[str, Any] = {"preset": "tiny", "config": {"num_hidden_layers": 1}}
"""The model of the small profile: one layer of width 64."""
MANY = 4
"""Groups beyond which the paper trains eight times as long."""


@dataclass(frozen=True)
class Profile:
    """How runs are trained, how often, and with which settings of the methods."""

    name: str
    about: str

    @property
    def mini(self) -> bool:
        """Whether it is the small one."""
        return self.name == "mini"

    def recipe(self, setting: Setting, larger: bool = False) -> dict[str, Any]:
        """What `aioli train` would be told, without the data and the model that training begins with."""
        if self.mini:
            train: dict[str, Any] = {"steps": 1000, "batch": 8, "lr": 2e-3 if larger else 3e-3}
            if setting.start is not None:  # instruction tasks are small, and no example is to be seen often
                train = {"steps": 200 if setting.data == "instructions" else 300, "batch": 16, "lr": 1e-3}
            return {"model": "tiny-128" if larger else SMALL, "train": train, "val": {"final": 1000, "share": 0.1}}
        train = {"steps": 40_000 if setting.m > MANY else 5_000, "batch": 8, "warmup": 500}
        train |= {"lr": 3e-4, "floor": 1 / 3} if larger else {"lr": 5e-4, "floor": 0.2}  # both down to 1e-4 (E28)
        if setting.data == "instructions":
            train = {"steps": 1000, "batch": 8, "lr": 1e-5, "warmup": 100, "floor": 0.0}
        elif setting.start is not None:  # Pythia's own
            train = {"steps": 2000, "batch": 8, "lr": 6e-4, "warmup": 0.01, "floor": 0.1}
        return {"model": "pythia-1.4b" if larger else "pythia-160m", "train": train}

    def seeds(self, experiment: str, setting: Setting) -> int:
        """Paired seeds."""
        if self.mini:
            return 10 if experiment == "ood" else 3
        return 3 if setting.m > MANY or experiment in ("ood", "larger-model") else 5

    def settings(self, method: str, experiment: str, setting: Setting) -> Settings:
        """Settings of a method in an experiment."""
        name = "unrestricted" if experiment in ("ablations", "sensitivity", "proportions", "downstream") else experiment
        if method.startswith("aioli"):
            if self.mini:
                return {"rounds": MINI_ROUNDS.get(method, 5)} if method in ONLINE or method.startswith("aioli+") else {}
            tuned = {} if method in OURS else dict(TUNED.get((name, setting.name), {}))
            base = BASELINES.get((method.removeprefix("aioli+"), name, setting.name), {})
            return {**tuned, "base": dict(base)} if method.startswith("aioli+") and base else tuned
        return {} if self.mini else dict(BASELINES.get((method, name, setting.name), {}))


PROFILES = {
    "mini": Profile("mini", "two CPU cores: a model of one layer, 1,000 steps of 512 tokens, about 13 seconds a run"),
    "paper": Profile("paper", "the paper's: Pythia-160M or 1.4B, SlimPajama-6B, 5,000 or 40,000 steps; needs GPUs"),
}
