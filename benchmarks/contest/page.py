"""docs/peers.md, made from results/peers.json: no number on the page is written by hand."""

from __future__ import annotations

import re
import textwrap
from typing import Any

Found = dict[str, Any]
COSTS = (
    "",
    "CPU time per token",
    "single runs",
    "time per token",
    "single runs",
    "peak memory, MB",
)
EXACT = (
    "",
    "stale sequences after a change",
    "with 2 workers",
    "largest deviation, sequences",
    "killed and gone on with",
)
IN_THE_LOSS = ("doge", "doremi", "doge-by-hand", "doge-val-by-hand", "doremi-by-hand")
"""Whose weights are in the loss, not in the batches."""


def page(found: Found) -> str:
    """The page of a result."""
    here = {name: c for name, c in found["contestants"].items() if "failed" not in c}
    parts = [_head(found, here), _costs(here), _exactness(found["job"], here), _differs(found), _missing(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _paragraph(text: str, indent: str = "") -> str:
    """Wrapped, but never inside a link."""
    joined = re.sub(r"\[[^]]*\]\(", lambda link: link[0].replace(" ", "\0"), " ".join(text.split()))
    lines = textwrap.wrap(joined, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _points(*texts: str) -> str:
    return "\n".join(_paragraph(f"- {text}", "  ") for text in texts if text)


def _table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _head(found: Found, here: Found) -> str:
    job, machine = found["job"], found["machine"]
    shape, losses = job["shape"], sorted({c["first_loss"] for c in here.values()})
    same = f"the loss before the first step is {losses[0]} for all" if len(losses) == 1 else f"losses {losses}"
    about = f"""The same small job through aioli and through what one would pick instead. Every number on this page
        was measured by `benchmarks/peers.py` in one run of {found["minutes"]:.0f} minutes and stands in
        [results/peers.json](../results/peers.json); `make peers` measures again and makes this page of it. What is
        compared is what it takes and how exact it is; how good the mixtures are is another question
        ([results.md](results.md))."""
    work = f"""**The job**: {job["steps"]} steps of {job["batch"]} sequences of {job["context"]} tokens,
        {len(job["groups"])} groups of made-up sequences, a LLaMA of {shape["num_hidden_layers"]} layers and width
        {shape["hidden_size"]} in float32, the same first weights ({same}), AdamW with a learning rate that rises and
        falls, one thread, no loader workers unless it is said. Every contestant runs in a process of its own, on
        {machine["cores"]} cores that others used as well (load {machine["load"]:g}). Timed runs take turns,
        {job["steps"] // job["pieces"]} steps each, of which the first only warms up, and were repeated {job["runs"]}
        times; ratios are to the bare loop in the same environment. What reaches the model is counted at its door: every
        sequence says which one it is."""
    return "\n\n".join(["# Side by side", _paragraph(about), _paragraph(work)])


# ---------------------------------------------------------------------- what it costs


def _costs(here: Found) -> str:
    rows = []
    for c in here.values():
        if "wall" in c:
            rows.append([c["title"], *_times(c["cpu"], "**"), *_times(c["wall"]), str(c["peak_mb"])])
    said = _points(_noise(here), _static(here), _online(here), _doge(here), _doremi(here))
    text = "Times are shares of the bare loop's in the same environment; below, elapsed time stands in brackets."
    return "\n\n".join(["## What it costs", text, _table(COSTS, rows), said])


def _times(clock: Found, strong: str = "") -> list[str]:
    return [f"{strong}{clock['ratio']:.2f}{strong}", f"{clock['least']:.2f} to {clock['most']:.2f}"]


def _ratio(here: Found, name: str) -> str:
    return f"{here[name]['cpu']['ratio']:.2f} ({here[name]['wall']['ratio']:.2f})"


def _all(here: Found, *names: str) -> bool:
    return all("wall" in here.get(name, {}) for name in names)


def _noise(here: Found) -> str:
    loops = [here[name] for name in ("plain", "again", "plain-4", "again-4") if _all(here, name)]
    if not loops:
        return ""
    wall, cpu = (
        f"{min(c[clock]['least'] for c in loops):.2f} to {max(c[clock]['most'] for c in loops):.2f}"
        for clock in ("wall", "cpu")
    )
    return f"""**Noise.** Single runs of the bare loop came to {wall} of the mean of its kind, and to {cpu} in CPU time,
        which others on the machine disturb less: what differs by less is not known to differ. In so small a model a
        step takes little and what stands around it much: differences shrink with its size."""


def _static(here: Found) -> str:
    if not _all(here, "stratified", "interleave"):
        return ""
    four = f" ({_ratio(here, 'interleave-4')} with transformers 4)" if _all(here, "interleave-4") else ""
    return f"""**A fixed mixture**: `aioli train` {_ratio(here, "stratified")}, with its journal and looks for it;
        the Trainer with `interleave_datasets` {_ratio(here, "interleave")}{four}."""


def _online(here: Found) -> str:
    if not _all(here, "aioli", "pooled", "loop"):
        return ""
    text = f"""**A mixture that adapts**: `aioli train` {_ratio(here, "aioli")} under Aioli and
        {_ratio(here, "pooled")} under aioli-pooled; Aioli in the bare loop {_ratio(here, "loop")}"""
    if _all(here, "callback", "interleave"):
        text += f", in the Trainer {_ratio(here, 'callback')}, which alone takes {_ratio(here, 'interleave')}"
    if _all(here, "odm-loss", "odm-entropy", "interleave-4"):
        text += f"""; fms-acceleration-odm {_ratio(here, "odm-loss")} with the training loss as reward, which needs no
            look at held-out data, and {_ratio(here, "odm-entropy")} with the entropy on as many held-out sequences as
            Aioli looks at, in a Trainer that alone takes {_ratio(here, "interleave-4")}"""
    return text + "."


def _compared(here: Found, mine: str, other: str) -> str:
    """Whether the first costs less: only where single runs do not overlap in CPU time."""
    a, b = here[mine]["cpu"], here[other]["cpu"]
    if a["most"] < b["least"]:
        return "cheaper than"
    return "dearer than" if a["least"] > b["most"] else "not clearly cheaper or dearer than"


def _doge(here: Found) -> str:
    if not _all(here, "doge", "doge-by-hand", "doge-val-by-hand"):
        return ""
    return f"""**DoGE**: by hand, with a gradient of each group, {_ratio(here, "doge-by-hand")}, and with a held-out
        target {_ratio(here, "doge-val-by-hand")}; ours, which has such a target, {_ratio(here, "doge")}:
        {_compared(here, "doge", "doge-val-by-hand")} by hand with so few groups. By hand the cost grows with their
        number, ours does not ([training.md](training.md#speed))."""


def _doremi(here: Found) -> str:
    if not _all(here, "doremi", "doremi-by-hand"):
        return ""
    return f"""**DoReMi**: by hand, with a pass of each group through both models, {_ratio(here, "doremi-by-hand")};
        ours, with one pass of the batch, {_ratio(here, "doremi")}: {_compared(here, "doremi", "doremi-by-hand")} by
        hand. What makes the difference, one pass of the batch instead of one for each group, can be written by hand
        too."""


# ---------------------------------------------------------------------- how exact it is


def _exactness(job: Found, here: Found) -> str:
    rows = []
    for name, c in here.items():
        if not name.startswith("again"):
            switches = {s["workers"]: _stale(s) for s in c.get("switch", ())}
            none = "weights are in the loss" if name in IN_THE_LOSS else "–"
            stale = [switches.get(0, none), switches.get(2, "–")]
            rows.append([c["title"], *stale, f"{c['deviation']:.1f}", _resume(c)])
    after = job["switch"][1] - job["switch"][0]
    said = _points(
        f"""**Stale**: all weight is moved from one group to another after step {job["switch"][0]}; counted is what
        still came from the first group in the {after} steps that followed. (–: the mixture is not changed by a run, or
        that is the same as in another row.)""",
        f"""**Deviation**: between the sequences of a group that the model was given and those that the mixtures in
        force at each step add up to; the largest over groups and steps, in sequences of
        {job["steps"] * job["batch"]}.""",
        f"""**Killed** {job["killed"]} steps after a checkpoint in the middle, and gone on with in another process: are
        the remaining batches and the weights at the end those of a run that was not killed?""",
        *_why(here),
    )
    return "\n\n".join(["## How exact it is", _table(EXACT, rows), said])


def _stale(switch: Found) -> str:
    if "failed" in switch:
        return f"failed: {switch['failed']}"
    if switch["sequences"] == 0:
        return "0"
    return f"{switch['sequences']}, in {switch['batches']} of {switch['after']} steps"


def _resume(c: Found) -> str:
    if "resume" not in c:
        return "as above" if "Trainer" in c["title"] else "yours to write"
    resume = c["resume"]
    if "failed" in resume:
        return f"failed: {resume['failed']}"
    if resume["exact"]:
        return "same batches, same weights"
    apart = f"weights differ by up to {resume['weights_apart']:.1e}" if resume["weights_apart"] else "same weights"
    return f"{resume['same_batches']} of {resume['left']} batches, {apart}"


def _why(here: Found) -> list[str]:
    """What lies behind the peers' numbers."""
    switches = {s["workers"]: s for s in here.get("odm-entropy", {}).get("switch", ()) if "failed" not in s}
    said, two = [], switches.get(2, {})
    if switches.get(0, {}).get("sequences"):
        said.append(
            """fms-acceleration-odm draws when the Trainer's loader asks, and that is one batch ahead of the step: the
            batch after an update is of the weights before it."""
        )
    if two.get("sequences"):
        told = "the new weights do not reach them" if two["batches"] == two["after"] else "new weights reach them late"
        twice = f"; and they draw alike: {two['repeated']} sequences of that run had been in it before"
        said.append(f"Loader workers have copies of its data set: {told}{twice if two['repeated'] else ''}.")
    if here.get("interleave", {}).get("deviation", 0) > 1:
        said.append(
            """`interleave_datasets` and fms-acceleration-odm draw every sequence (with the training loss: every batch)
            at random; aioli plans how many there are of each group."""
        )
    return said


# ---------------------------------------------------------------------- what differs, and what is missing


def _differs(found: Found) -> str:
    job, ours, theirs = found["job"], found["versions"].get("product", {}), found["versions"].get("bench", {})
    environments = f"""**Environments.** Ours: torch {ours.get("torch")}, transformers {ours.get("transformers")},
        datasets {ours.get("datasets")}."""
    odm = ""
    if "fms-acceleration-odm" in theirs:
        environments += f""" The peers': torch {theirs["torch"]}, transformers {theirs["transformers"]}, datasets
            {theirs["datasets"]}, fms-acceleration-odm {theirs["fms-acceleration-odm"]}, which asks for
            {theirs["fms-acceleration-odm requires"]}, and fms-acceleration {theirs["fms-acceleration"]}, which it
            imports and does not ask for. The first was installed without what it asks for, so that torch is the same
            everywhere."""
        odm = f"""**fms-acceleration-odm.** With the training loss, batches are of one group and weights change after
            every step, its default. With the entropy, its default reward, every sequence is drawn for itself and
            weights change every {job["steps"] // job["rounds"]} steps, after a look at {job["looked_at"]} held-out
            sequences of each group: as often as Aioli's, which looks at as many in a round, a few at a time."""
    said = _points(
        environments,
        odm,
        f"**Aioli** has {job['rounds']} rounds, since the run is short; its other settings are the defaults.",
        """**DoGE by hand** is Algorithm 1 of [Fan et al.](https://arxiv.org/abs/2310.15393): the groups' gradients on
        one batch give both the weights and the step. Ours, like the variant with a held-out target, takes half a batch
        of held-out sequences besides, as the Aioli paper does with three groups. **DoReMi by hand** is the proxy run
        of [Xie et al.](https://arxiv.org/abs/2305.10429), clipped token by token; ours clips group by group, as in the
        Aioli paper. These are proxy runs: the final run, and DoReMi's reference, come on top.""",
        """**The Trainer** begins its warm-up at zero, the others one step later; its AdamW is the others', not its
        fused one; reports are off, but a reward of training losses is read from a log of every step.""",
        """**The order** of the sequences is everyone's own. `aioli train` has the system keep freed memory for the next
        step ([training.md](training.md)); the others leave that as it is. Peak memory is mostly that of
        libraries.""",
    )
    return f"## What differs\n\n{said}"


def _missing(found: Found) -> str:
    gone = [f"{c['title']}: {c['failed']}" for c in found["contestants"].values() if "failed" in c]
    return f"## Not measured\n\n{_points(*gone)}" if gone else ""
