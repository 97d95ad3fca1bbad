"""Tasks instead of perplexity: which of four continuations is the true one, for text that no run has trained on.

The paper's eight tasks need the hub. The small profile asks something of the same kind of the held-out text of each
group, in lm-eval's form: the first half of a sequence, and its second half among those of three others of the group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aioli.data.store import TokenStore
from aioli.files import write_text

COUNT, CHOICES = 250, 4


def write_tasks(store: TokenStore, groups: Sequence[str], place: Path) -> dict[str, str]:
    """Write a task for each group; returns their names, by group."""
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    tokenizer = loader.from_pretrained(str(store.tokenizer), trust_remote_code=False, local_files_only=True)
    place.mkdir(parents=True, exist_ok=True)
    named = {group: f"continue_{k}" for k, group in enumerate(groups)}
    for group, name in named.items():
        lines = [json.dumps(each) for each in _questions(store.rows(group, "test"), tokenizer)]
        write_text(place / f"{name}.jsonl", "\n".join(lines) + "\n")
        write_text(place / f"{name}.yaml", _task(name, place / f"{name}.jsonl"))
    return named


def _questions(rows: Any, tokenizer: Any) -> list[dict[str, Any]]:
    """Sequences spread evenly over the text, each with the ends of others drawn by a fixed seed."""
    rng = np.random.default_rng(0)
    count = min(COUNT, len(rows))
    if count < CHOICES:
        raise ValueError(f"{count} held-out sequences are too few for questions with {CHOICES} answers")
    half = rows.shape[1] // 2
    where = np.linspace(0, len(rows) - 1, count).astype(int)
    found = []
    for k in where:
        others = rng.choice(np.delete(where, np.searchsorted(where, k)), CHOICES - 1, replace=False)
        answer = int(rng.integers(CHOICES))
        ends = np.insert(others, answer, k)
        texts = [tokenizer.decode(rows[j][half:].tolist()) for j in ends]
        found.append({"question": tokenizer.decode(rows[k][:half].tolist()), "choices": texts, "answer": answer})
    return found


def _task(name: str, data: Path) -> str:
    """A task of lm-eval; JSON is YAML."""
    plain = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data.resolve())}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    return json.dumps(plain, indent=1) + "\n"


def accuracies(
    models: Mapping[str, Mapping[int, Path]], store: TokenStore, groups: Sequence[str], place: Path, mini: bool
) -> dict[str, Any]:
    """The accuracy of every model at every task, by method and seed."""
    from aioli.evaluate import load_tasks, measure

    named = write_tasks(store, groups, place) if mini else {}
    tasks = load_tasks(list(named.values()), place, None) if mini else load_tasks(None, None, None)
    words = {name: group for group, name in named.items()}
    found: dict[str, Any] = {}
    for label, seeds in models.items():
        for seed, model in seeds.items():
            scores = measure(model, store.tokenizer, tasks, batch=64).tasks
            found.setdefault(label, {})[str(seed)] = {words.get(n, n): each.score.value for n, each in scores.items()}
    return found
