"""What is gathered while a segment is trained: losses by group, gradients, seconds. Part of a run's state, so that a
segment that was interrupted ends with the values it would have had."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from aioli.protocol import Segment
from aioli.train.forward import directional
from aioli.train.probes import IGNORED, gradient_of, group_losses, group_sums, on_device, token_losses

if TYPE_CHECKING:
    from accelerate import Accelerator

    from aioli.train.engine import Engine

Array = NDArray[np.float64]
KINDS = ("train_loss", "excess_loss", "token_excess_loss")


@dataclass
class Measures:
    """Sums over the steps of a segment on this rank."""

    m: int
    drawn: list[int]
    """Samples that had been drawn from each group when the segment began."""
    steps: int = 0
    loss: float = 0.0
    """Sum of the losses that were minimised."""
    tokens: Array = field(default_factory=lambda: np.zeros(0))
    """Tokens with loss of each group, where losses by group are gathered."""
    sums: dict[str, Array] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)
    seen: Array = field(default_factory=lambda: np.zeros(0))
    """Steps in which each group was present, where gradients are gathered."""
    train_seconds: float = 0.0
    probe_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = np.zeros(self.m) if not len(self.tokens) else np.asarray(self.tokens)
        self.seen = np.zeros(self.m) if not len(self.seen) else np.asarray(self.seen)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Time that goes into training."""
        began, probed = time.perf_counter(), self.probe_seconds
        yield
        self.train_seconds += time.perf_counter() - began - (self.probe_seconds - probed)

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Time that goes into looking."""
        began = time.perf_counter()
        yield
        self.probe_seconds += time.perf_counter() - began

    def add_losses(
        self, losses: torch.Tensor, part: Mapping[str, torch.Tensor], reference: torch.nn.Module | None
    ) -> None:
        """Losses by group of one part of a batch, from the forward pass of the training step itself."""
        with torch.no_grad():
            counted = part["labels"][:, 1:] != IGNORED
            found = {"train_loss": losses}
            if reference is not None:
                expected, _ = token_losses(reference(input_ids=part["ids"]).logits, part["labels"])
                found["excess_loss"] = losses - expected
                found["token_excess_loss"] = found["excess_loss"].clamp(min=0)
            for kind, values in found.items():
                sums, tokens = group_sums(values.double(), counted, part["group"], self.m)
                self.sums[kind] = self.sums.get(kind, np.zeros(self.m)) + sums.cpu().numpy()
            self.tokens = self.tokens + tokens.cpu().numpy()

    def add_gradients(
        self, engine: Engine, parts: list[dict[str, torch.Tensor]], counts: torch.Tensor, segment: Segment
    ) -> None:
        """Inner products of validation and training gradients at the weights before the step."""
        rows = []
        for direction in _validation_gradients(engine, segment):
            row = torch.zeros(self.m, device=engine.device)
            for part in parts:
                row += _slopes(engine, direction, part, counts)
            rows.append(row)
        found = engine.accelerator.reduce(torch.stack(rows), "sum").cpu().double().numpy()
        self._add("grad_inner", found if engine.settings.matrix else found[0])
        if "grad_norm" in segment.observe:
            self._add("grad_norm", _norms(engine, parts, counts))
        present = torch.zeros(self.m, device=engine.device)
        for part in parts:
            present += torch.bincount(part["group"], minlength=self.m)
        self.seen = self.seen + (engine.accelerator.reduce(present, "sum") > 0).double().cpu().numpy()

    def _add(self, kind: str, values: Array) -> None:
        self.gradients[kind] = self.gradients.get(kind, np.zeros_like(values)) + values

    def values(self, segment: Segment, accelerator: Accelerator) -> dict[str, Array]:
        """Means over the segment and over all ranks; NaN where a group was absent."""
        found: dict[str, Array] = {}
        wanted = [kind for kind in KINDS if kind in segment.observe]
        with np.errstate(invalid="ignore", divide="ignore"):
            if wanted:
                rows = [self.sums.get(kind, np.zeros(self.m)) for kind in wanted]
                stacked = torch.from_numpy(np.stack([self.tokens, *rows])).to(accelerator.device)
                tokens, *sums = accelerator.reduce(stacked, "sum").cpu().numpy()
                found = {kind: total / tokens for kind, total in zip(wanted, sums, strict=True)}
            for kind in ("grad_inner", "grad_norm"):
                if kind in segment.observe:
                    found[kind] = self.gradients.get(kind, np.zeros(self.m)) / np.maximum(self.seen, 1)
        return found

    def with_loss(self, tokens: Array, values: Mapping[str, Any]) -> Array:
        """The tokens that were consumed; none of a group whose sequences carried no loss, where losses are observed."""
        for kind in KINDS:
            if kind in values:
                tokens = np.where(np.isnan(values[kind]), 0, tokens)
        return tokens

    def state_dict(self, accelerator: Accelerator) -> dict[str, Any]:
        """As plain JSON, to the bit; what ranks have gathered on their own, for each of them."""
        mine = torch.from_numpy(np.stack([self.tokens, *self.sums.values()]))[None].to(accelerator.device)
        return {
            "drawn": self.drawn,
            "steps": self.steps,
            "loss": self.loss,
            "kinds": list(self.sums),
            "ranks": accelerator.gather(mine).tolist(),
            "gradients": {kind: values.tolist() for kind, values in self.gradients.items()},
            "seen": self.seen.tolist(),
            "train_seconds": self.train_seconds,
            "probe_seconds": self.probe_seconds,
        }

    @classmethod
    def from_state(cls, m: int, state: Mapping[str, Any], rank: int = 0, world: int = 1) -> Measures:
        """From a `state_dict`; where there were other ranks, the first one takes what they had."""
        ranks = np.array(state["ranks"])
        if len(ranks) != world:
            ranks = np.concatenate([ranks.sum(0, keepdims=True), np.zeros((world - 1, *ranks.shape[1:]))])
        tokens, *sums = ranks[rank]
        rest = {name: state[name] for name in ("drawn", "steps", "loss", "train_seconds", "probe_seconds")}
        gradients = {kind: np.array(values) for kind, values in state["gradients"].items()}
        kinds = dict(zip(state["kinds"], sums, strict=True))
        return cls(m, **rest, tokens=tokens, sums=kinds, gradients=gradients, seen=np.array(state["seen"]))


def _slopes(
    engine: Engine, direction: Mapping[str, torch.Tensor], part: Mapping[str, torch.Tensor], counts: torch.Tensor
) -> torch.Tensor:
    """⟨direction, ∇L_j⟩ in one forward-mode pass; a pass for each group where a model has an operation without it."""
    arguments = part["ids"], part["labels"], part["group"], len(counts), counts
    if engine.forward_mode:
        try:
            return directional(engine.plain, direction, *arguments)
        except NotImplementedError:
            engine.forward_mode = False
    found = torch.zeros(len(counts), device=engine.device)
    losses = group_losses(engine.plain(input_ids=part["ids"]).logits, *arguments[1:])
    present = sorted(set(part["group"].tolist()))
    for j in present:
        gradient = gradient_of(engine.plain, losses[j], keep=j != present[-1])
        found[j] = torch.stack([(gradient[name] * direction[name]).sum() for name in gradient]).sum()
    return found


def _validation_gradients(engine: Engine, segment: Segment) -> Iterator[dict[str, torch.Tensor]]:
    """Σ_i w_i ∇L_val,i on a fresh batch of validation data, or each target's own; the same on all ranks.

    A batch with fewer sequences than targets holds some of them in turn; these stand for all.
    """
    sampler = engine.val_sampler
    assert sampler is not None
    n, mine = sampler.m, slice(engine.accelerator.process_index, None, engine.world)
    whole = on_device(sampler.next(np.full(n, 1.0 / n)), engine.device)
    counts = torch.zeros(n, device=engine.device)
    counts.index_add_(0, whole["group"], (whole["labels"][:, 1:] != IGNORED).sum(1).float())
    ids, labels, target = (tensor[mine] for tensor in whole.values())
    if not len(ids):  # fewer sequences than ranks
        ids, target = whole["ids"][:1], whole["group"][:1]
        labels = torch.full_like(ids, IGNORED)
    weights = np.ones(n) if segment.target_weights is None else segment.target_weights * n
    present = (counts > 0).cpu().numpy()
    scale = weights.sum() / max(weights[present].sum(), 1e-12)
    wanted = np.eye(n) if engine.settings.matrix else weights[None] * scale
    losses = group_losses(engine.plain(input_ids=ids).logits, labels, target, n, counts)
    for k, row in enumerate(wanted):
        chosen = torch.tensor(row.tolist(), dtype=losses.dtype, device=engine.device)
        found = gradient_of(engine.plain, (chosen * losses).sum(), keep=k < len(wanted) - 1)
        yield engine.accelerator.reduce(found, "sum") if engine.world > 1 else found


def _norms(engine: Engine, parts: list[dict[str, torch.Tensor]], counts: torch.Tensor) -> Array:
    """Norm of each group's training gradient: one backward pass for each."""
    m = len(counts)
    found = np.zeros(m)
    for j in range(m):
        total = torch.zeros(sum(p.numel() for p in engine.plain.parameters() if p.requires_grad), device=engine.device)
        for part in parts:
            chosen = part["group"] == j
            if bool(chosen.any()):
                ids, labels, group = (tensor[chosen] for tensor in part.values())
                loss = group_losses(engine.plain(input_ids=ids).logits, labels, group, m, counts)[j]
                total += torch.cat([g.flatten() for g in gradient_of(engine.plain, loss).values()])
        found[j] = float(engine.accelerator.reduce(total, "sum").norm())
    return found
