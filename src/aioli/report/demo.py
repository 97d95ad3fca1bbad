"""What the demo shows: two runs side by side, as a table, in words, and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aioli.report import page as pages
from aioli.report.svg import Series, areas, colour, lines
from aioli.report.trace import Trace


@dataclass
class Outcome:
    """Two finished runs: even shares, and a method."""

    traces: dict[str, Trace]
    method: str
    in_domain: bool

    @classmethod
    def read(cls, paths: Mapping[str, Path], method: str, in_domain: bool) -> Outcome:
        """From the journals of the runs."""
        traces = {name: Trace(path).read() for name, path in paths.items()}
        for name, trace in traces.items():
            if trace.result is None:
                raise ValueError(f"the {name} run was stopped at step {trace.step}; run the demo again to go on")
        return cls(traces, method, in_domain)

    @property
    def groups(self) -> list[str]:
        """What was trained on."""
        return list(self.traces[self.method].about["groups"])

    @property
    def target(self) -> str:
        """What the runs are judged by, in words."""
        return "all groups, on average" if self.in_domain else str(self.traces[self.method].about["targets"][0])

    def loss(self, name: str) -> float:
        """Mean test loss of a run."""
        result = self.traces[name].result
        assert result is not None
        return float(result["test"]["mean_loss"])

    def perplexity(self, name: str) -> float:
        """Mean test perplexity of a run."""
        result = self.traces[name].result
        assert result is not None
        return float(result["test"]["mean_perplexity"])

    @property
    def gain(self) -> float:
        """By how much the method's perplexity is below that of even shares."""
        return 1.0 - self.perplexity(self.method) / self.perplexity("stratified")

    def rows(self) -> list[list[str]]:
        """The table: header first."""
        found = [["run", "test loss", "perplexity", "vs even", *(f"on {g}" for g in self.groups), "looking"]]
        for name, trace in self.traces.items():
            assert trace.result is not None
            perplexity = self.perplexity(name)
            against = perplexity / self.perplexity("stratified") - 1.0
            shares = [f"{trace.result['realised'][g]:.0%}" for g in self.groups]
            seconds = trace.result["seconds"]
            versus = "" if name == "stratified" else f"{against:+.1%}"
            loss = self.loss(name)
            found.append([name, f"{loss:.4f}", f"{perplexity:.2f}", versus, *shares, f"{seconds['probe_share']:.1%}"])
        return found

    def words(self) -> list[str]:
        """What that means, and what it does not."""
        steps = self.traces[self.method].about["steps"]
        about = f"after the same {steps:,} steps, without a single run to try things out."
        if self.gain > 0:
            first = f"On {self.target}, Aioli's perplexity is {self.gain:.1%} below that of even shares, {about}"
        else:
            first = f"On {self.target}, Aioli's perplexity is {-self.gain:.1%} above that of even shares, {about}"
        honest = (
            "Judged on the groups themselves, even shares are hard to beat at this size: differences of a percent or "
            "two come and go with the seed."
            if self.in_domain
            else "This is one seed and a tiny model. The size of the gain varies from seed to seed and with the "
            "groups; whether there is one shows over several seeds."
        )
        return [first, honest]


def page(outcome: Outcome, path: Path, commands: Sequence[str]) -> Path:
    """The demo as a page."""
    trace = outcome.traces[outcome.method]
    have = ", ".join(outcome.groups)
    title = (
        f"How much of each: {have}?"
        if outcome.in_domain
        else f"You want a model that is good at {outcome.target}. You have {have}. How much of each?"
    )
    rows = outcome.rows()
    best = min(range(2), key=lambda k: outcome.loss(list(outcome.traces)[k]))
    lead, honest = outcome.words()
    mixture = areas(outcome.groups, trace.mixed.steps, trace.mixed.values, "step")
    smooth = areas(outcome.groups, trace.proportions.steps, trace.proportions.values, "step")
    parts = [
        pages.table(rows[0], rows[1:], best),
        pages.paragraph(
            "Test loss and perplexity are those of all held-out test data, averaged over what is judged; "
            "“on …” is the share of each group in what was trained on, “looking” the time spent on validation losses "
            "as a share of the time of training.",
            "note",
        ),
        pages.heading("How the mixture moved"),
        pages.figure(
            smooth, f"Shares that {outcome.method} chose, round by round; before the first one they are even."
        ),
        pages.figure(
            mixture,
            "The same with everything that was trained on: in short sweeps at the start of each round one group after "
            "another gets more, and what that does to the validation loss tells how much each one helps.",
        ),
        pages.heading("How the loss fell"),
        pages.figure(
            _losses(outcome), "Mean validation loss on the way, on the same small part of the held-out data for both."
        ),
        pages.heading("What this shows, and what it does not"),
        pages.paragraph(honest),
        pages.heading("What to try next"),
        pages.commands([line.strip() for line in commands]),
    ]
    return pages.write(path, title, lead, parts)


def _losses(outcome: Outcome) -> str:
    """Validation losses of both runs, from the first look that both have."""
    series = []
    for k, (name, trace) in enumerate(outcome.traces.items()):
        curve = trace.looks
        means = [sum(values) / len(values) for values in curve.values]
        series.append(Series(name, curve.steps, means, colour(k + 3), dashed=name == "stratified"))
    return lines(series, "step", "validation loss")
