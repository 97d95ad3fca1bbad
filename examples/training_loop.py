"""Aioli inside a training loop of your own: python examples/training_loop.py

The model is a character bigram in NumPy and the groups are text that comes with Python, so this runs anywhere in
seconds; put your model and your loader in its place. Only the lines marked (*) are aioli's.
"""

import argparse
import builtins
import inspect
import pydoc_data.topics

import numpy as np

import aioli

STEPS, BATCH = 2000, 256
rng = np.random.default_rng(0)


def encode(texts):
    return np.frombuffer("\n".join(texts).encode("ascii", "replace"), np.uint8).astype(int) % 128


groups = {
    "manual": encode(pydoc_data.topics.topics.values()),
    "source": encode([inspect.getsource(argparse), inspect.getsource(inspect)]),
}
kinds = [kind for kind in vars(builtins).values() if isinstance(kind, type)]
texts = {str(v.__doc__) for kind in kinds for v in (kind, *vars(kind).values())}
val, test = np.array_split(encode(sorted(texts)), 2)  # docstrings: the target, which is never trained on
logits = np.zeros((128, 128))


def loss_on(tokens):
    shifted = logits - logits.max(1, keepdims=True)
    return np.mean(np.log(np.exp(shifted).sum(1))[tokens[:-1]] - shifted[tokens[:-1], tokens[1:]])


def train_step(proportions, rate):
    """One SGD step on a batch drawn from the mixture; returns how many tokens each group gave."""
    counts = rng.multinomial(BATCH, proportions)
    for tokens, count in zip(groups.values(), counts, strict=True):
        at = rng.integers(0, len(tokens) - 1, count)
        p = np.exp(logits[tokens[at]])
        np.add.at(logits, (tokens[at], tokens[at + 1]), rate)
        np.add.at(logits, tokens[at], -rate * p / p.sum(1, keepdims=True))
    return counts


policy = aioli.create("aioli-ood").policy(groups=list(groups), steps=STEPS, targets=["docstrings"])  # (*)
cursor = aioli.Cursor(policy, {"val_loss": lambda: [loss_on(val)]})  # (*)
for step in range(STEPS):
    tokens = train_step(cursor.proportions, rate=0.05 * (1 - step / STEPS))  # (*)
    cursor.step(tokens)  # (*)

shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(groups, policy.report()["p"], strict=True))
print(f"test perplexity on docstrings {np.exp(loss_on(test)):.2f}; last mixture: {shares}")
