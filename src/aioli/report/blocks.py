"""A mixture in the words of other trainers, ready to paste."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from fractions import Fraction

DIGITS = 6
"""Decimals of a share."""


def rounded(proportions: Mapping[str, float], digits: int = DIGITS) -> dict[str, float]:
    """Shares with so many decimals that add up to exactly 1: the largest remainders are rounded up."""
    scale = 10**digits
    exact = {name: Fraction(p) * scale for name, p in proportions.items()}
    whole = {name: int(value) for name, value in exact.items()}
    left = scale - sum(whole.values())
    for name in sorted(exact, key=lambda name: whole[name] - exact[name])[: max(0, left)]:
        whole[name] += 1
    return {name: count / scale for name, count in whole.items()}


def as_json(shares: Mapping[str, float]) -> str:
    """A JSON object."""
    return json.dumps(dict(shares), ensure_ascii=False)


def as_yaml(shares: Mapping[str, float]) -> str:
    """A YAML mapping; names are quoted, so that none can be taken for something else."""
    return "\n".join(["proportions:", *(f"  {_quoted(name)}: {share:.{DIGITS}f}" for name, share in shares.items())])


def as_megatron(shares: Mapping[str, float]) -> str:
    """Megatron-LM's blend: weights and prefixes of preprocessed data by turns."""
    parts = [
        f"{share:.{DIGITS}f} {shlex.quote(name + '_text_document')}" for name, share in shares.items() if share > 0
    ]
    return f"--data-path {' '.join(parts)}"


def as_mosaicml(shares: Mapping[str, float]) -> str:
    """Streams of mosaicml-streaming, as in the YAML of LLM Foundry."""
    lines = ["streams:"]
    for name, share in shares.items():
        if share > 0:
            lines += [f"  {_quoted(name)}:", f"    local: {_quoted('data/' + name)}", "    split: train"]
            lines += [f"    proportion: {share:.{DIGITS}f}"]
    return "\n".join(lines)


def as_hf(shares: Mapping[str, float]) -> str:
    """Hugging Face datasets."""
    used = {name: share for name, share in shares.items() if share > 0}
    names = ", ".join(f"data[{name!r}]" for name in used)
    chances = ", ".join(f"{share:.{DIGITS}f}" for share in used.values())
    return f'interleave_datasets([{names}], probabilities=[{chances}], seed=0, stopping_strategy="all_exhausted")'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


BLOCKS: dict[str, Callable[[Mapping[str, float]], str]] = {
    "json": as_json,
    "yaml": as_yaml,
    "megatron": as_megatron,
    "mosaicml": as_mosaicml,
    "hf": as_hf,
}
"""What `aioli mix` can print to paste elsewhere."""


def block(name: str, proportions: Mapping[str, float]) -> str:
    """A mixture in the words of one trainer."""
    return BLOCKS[name](rounded(proportions))
