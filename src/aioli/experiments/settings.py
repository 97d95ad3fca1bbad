"""Data settings: which groups are mixed, towards what. The paper's six, and settings with something to win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

GROUPS = ("arxiv", "book", "c4", "commoncrawl", "github", "stackexchange", "wikipedia")
"""SlimPajama's."""
LOCAL = {
    "arxiv": "prose",
    "book": "stubs",
    "c4": "headers",
    "commoncrawl": "headers",
    "github": "python",
    "stackexchange": "tests",
    "wikipedia": "prose",
}
"""What stands in for them in the text that every machine has (`aioli prepare local`)."""
SWEEP = "grid-search"
"""The method whose gain is the room."""


@dataclass(frozen=True)
class Setting:
    """Groups to train on, and what the model is judged on."""

    groups: tuple[str, ...]
    """Nothing: all of the data."""
    targets: tuple[str, ...] = ()
    """Nothing: the groups themselves."""
    weights: tuple[tuple[str, float], ...] = ()
    """How much targets count, where they differ."""
    scarce: str | None = None
    """A group of which there is little: 2% of all tokens."""
    title: str | None = None
    data: str = "corpus"
    """Which data: `corpus` or `instructions`."""
    start: str | None = None
    """The model that training begins with: None is a fresh one."""

    @property
    def name(self) -> str:
        """As in the paper's tables: arxiv/stackexchange, arxiv/book/github → stackexchange."""
        words = self.title or "/".join(self.groups)
        if self.targets:
            words += f" → {'/'.join(self.targets)}"
        words += "".join(f", {target} ×{weight:g}" for target, weight in self.weights)
        words += f", little {self.scarce}" if self.scarce else ""
        return words + (f", from {self.start}" if self.start else "")

    @property
    def m(self) -> int:
        """Number of groups."""
        return len(self.groups)

    def local(self) -> Setting:
        """The same with groups that every machine has; groups with one stand-in become one."""
        groups = tuple(dict.fromkeys(LOCAL[name] for name in self.groups))
        if self.groups == GROUPS:
            return replace(self, groups=groups, title="all")
        targets = tuple(dict.fromkeys(LOCAL[name] for name in self.targets))
        return replace(
            self,
            groups=tuple(name for name in groups if name not in targets),
            targets=targets,
            weights=tuple((LOCAL[name], weight) for name, weight in self.weights),
            scarce=None if self.scarce is None else LOCAL[self.scarce],
        )


A_SE, GH_C4, B_SE = (
    Setting(pair) for pair in (("arxiv", "stackexchange"), ("github", "c4"), ("book", "stackexchange"))
)
A_B_SE, CC_GH_W = Setting(("arxiv", "book", "stackexchange")), Setting(("commoncrawl", "github", "wikipedia"))
SLIMPAJAMA = Setting(GROUPS, title="slimpajama")
IN_DOMAIN = (A_SE, GH_C4, B_SE, A_B_SE, CC_GH_W, SLIMPAJAMA)
"""The paper's six (Section 4.1)."""
TOWARDS = (
    Setting(("arxiv", "book", "github"), ("stackexchange",)),
    Setting(("github", "c4", "commoncrawl", "book"), ("wikipedia",)),
    Setting(("arxiv", "stackexchange", "c4"), ("github",)),
    Setting(("wikipedia", "github", "arxiv"), ("commoncrawl",)),
)
"""Towards a target that is not trained on: the paper's (first), and three more."""
ROOMY = (
    Setting(("arxiv", "book", "stackexchange"), weights=(("book", 4.0),)),
    Setting(("c4", "commoncrawl", "wikipedia", "github")),
    Setting(("github", "c4", "wikipedia"), scarce="wikipedia"),
)
"""Ours: unequal target weights, overlapping groups, a small group that must be repeated."""
NON_LINEAR = (Setting(("book", "c4")),)
"""Where the paper found laws that do not hold (Appendix C.1.1)."""
CHECKPOINTS = tuple(
    replace(setting, start=start) for start in ("half-trained", "trained") for setting in (A_SE, GH_C4, B_SE)
)
"""From models that are trained already (Appendix C.1.1)."""
INSTRUCTIONS = (Setting((), title="instructions", data="instructions", start="trained"),)
"""Nine tasks (Appendix C.1.2)."""


def named(names: Sequence[str] | None, among: Sequence[Setting]) -> tuple[Setting, ...]:
    """Settings by name; `->` may stand for the arrow."""
    if not names:
        return tuple(among)
    plain = {plain_name(setting.name): setting for setting in among}
    for name in names:
        if plain_name(name) not in plain:
            known = ", ".join(repr(setting.name) for setting in among)
            raise ValueError(f"--settings {name}: this experiment has {known}")
    return tuple(plain[plain_name(name)] for name in names)


def plain_name(name: str) -> str:
    """A setting's name as people may write it."""
    return name.replace(" ", "").replace("→", "->").lower()
