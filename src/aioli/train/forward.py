"""Derivatives of all groups' losses along one direction, in one pass of forward-mode differentiation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from aioli.train.probes import IGNORED, group_sums

Tensor = torch.Tensor
_DUAL: Any = forward_ad


def directional(
    model: torch.nn.Module,
    direction: Mapping[str, Tensor],
    ids: Tensor,
    labels: Tensor,
    group: Tensor,
    groups: int,
    tokens: Tensor | None = None,
) -> Tensor:
    """⟨direction, ∇L_j⟩ of every group's training loss L_j: (groups,), at a cost that does not grow with their number.

    The model is differentiated along `direction` up to its logits z, and the loss of a token by hand: its derivative is
    Σ_k softmax(z)_k ż_k - ż_y. `tokens` divides the sums, where the sequences are a part of a larger batch.
    """
    with torch.no_grad(), _DUAL.dual_level(), _PlainAttention():
        dual = {
            name: _DUAL.make_dual(p.detach(), direction[name])
            for name, p in model.named_parameters()
            if name in direction
        }
        logits, moved = _DUAL.unpack_dual(functional_call(model, dual, kwargs={"input_ids": ids}).logits)
    if moved is None:  # nothing in `direction` reaches the logits
        return torch.zeros(groups, device=ids.device)
    with torch.no_grad():
        wanted = labels[:, 1:]
        z, change = logits[:, :-1].float(), moved[:, :-1].float()
        chosen = change.gather(-1, wanted.clamp(min=0)[..., None])[..., 0]
        slopes = torch.linalg.vecdot(torch.softmax(z, -1), change) - chosen
        sums, here = group_sums(slopes, wanted != IGNORED, group, groups)
        return sums / (here if tokens is None else tokens).clamp(min=1)


class _PlainAttention(TorchFunctionMode):
    """Attention written out: the fused kernels have no forward mode, and torch's own plain form is slow in it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q kᵀ · scale + mask) v, with the derivative of the softmax by hand: ẏ = y (ṡ - Σ y ṡ)."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.size(-3) // x.size(-3), -3) for x in (key, value))
    scores = (query * (1.0 / math.sqrt(query.size(-1)) if scale is None else scale)) @ key.transpose(-2, -1)
    s, moved = _DUAL.unpack_dual(scores)
    if is_causal:
        s = s + torch.full(s.shape[-2:], -math.inf, device=s.device, dtype=s.dtype).triu(1)
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else s + attn_mask
    y = torch.softmax(s, -1)
    if attn_mask is not None:
        y = y.nan_to_num(0.0)  # a position that may look at nothing
    if moved is not None:
        y = _DUAL.make_dual(y, y * (moved - torch.linalg.vecdot(y, moved)[..., None]))
    found: Tensor = F.dropout(y, dropout_p) @ value if dropout_p else y @ value
    return found
