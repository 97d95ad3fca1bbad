"""lm-eval at work: a model and its tokenizer in, an `Evaluation` out. On the GPU if there is one, else on the CPU.

lm-eval does the measuring, with its own class for models of transformers; added are progress, a count of what did not
fit into the model's context, and answers that are longer than it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from aioli.evaluate.quiet import quiet, reason
from aioli.evaluate.result import Evaluation, task_scores
from aioli.evaluate.tasks import Tasks, load_tasks

with quiet():
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer

    from aioli.train.models import load_model

Report = Callable[[str, int, int], None]
Request = tuple[Any, list[int], list[int]]
"""What lm-eval knows it by, tokens of the question, tokens of the answer."""

SEED = 1234
"""Lm-eval's own: which solved examples are shown."""
RESAMPLES = 1000
"""For standard errors that have no formula (perplexity)."""


def evaluate(
    model: str | Path,
    tokenizer: str | Path | None = None,
    tasks: Sequence[str] | None = None,
    *,
    include: str | Path | None = None,
    limit: int | None = None,
    batch: int = 16,
    shots: int | None = None,
    report: Report | None = None,
) -> Evaluation:
    """Evaluate the model in a directory on tasks of lm-eval, by name; left out: the paper's eight.

    tokenizer: its directory; left out: the model's. include: a directory with tasks of your own, whose Python is run.
    limit: only the first examples of each task. batch: sequences at once. shots: solved examples before each question.
    report: called with the name of the task, what is done, and the total."""
    _check(limit, batch)
    return measure(model, tokenizer, load_tasks(tasks, include, shots), limit=limit, batch=batch, report=report)


def measure(
    model: str | Path,
    tokenizer: str | Path | None,
    tasks: Tasks,
    *,
    limit: int | None = None,
    batch: int = 16,
    report: Report | None = None,
) -> Evaluation:
    """Evaluate the model in a directory on tasks that have been loaded, which many models may share."""
    _check(limit, batch)
    place = model if tokenizer is None else tokenizer
    harness = _load(Path(model), Path(place), batch)
    asked, parts = {}, {}
    for name, loaded in tasks.loaded.items():
        harness.follow(name, report)
        found = task_scores(_run(harness, name, loaded, limit))
        if not found:
            raise ValueError(f"task {name} has no metric that is a number")
        shown = [name] if name in found else [each for each in loaded["tasks"] if each in found]
        asked.update({each: found[each] for each in shown})
        parts.update({each: score for each, score in found.items() if each not in shown})
    return Evaluation(
        model=str(model),
        tokenizer=str(place),
        tasks=asked,
        parts=parts,
        context=int(harness.max_length),
        requests=harness.requests,
        cut=harness.cut,
        limit=limit,
        harness=version("lm-eval"),
    )


def _check(limit: int | None, batch: int) -> None:
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} must be at least 1")
    if batch < 1:
        raise ValueError(f"batch={batch} must be at least 1")


def _load(model: Path, tokenizer: Path, batch: int) -> Harness:
    """The model, ready to be asked."""
    words: Any = AutoTokenizer
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with quiet():
        try:
            known = words.from_pretrained(str(tokenizer), trust_remote_code=False, local_files_only=True)
        except Exception as error:  # transformers raises whatever it stumbles over
            raise ValueError(f"cannot load the tokenizer in {tokenizer}: {reason(error)}") from error
        try:
            found: Any = load_model(str(model))
        except Exception as error:
            raise ValueError(f"cannot load the model in {model}: {reason(error)}") from error
        if len(known) > found.config.vocab_size:
            raise ValueError(
                f"the tokenizer in {tokenizer} has {len(known)} tokens, but the model in {model} knows only "
                f"{found.config.vocab_size}; give the tokenizer that it was trained with (--tokenizer)"
            )
        return Harness(found.to(device), known, batch)


def _run(harness: Harness, name: str, loaded: dict[str, Any], limit: int | None) -> Any:
    """One task, or a group of them."""
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(seed=SEED)  # each model sees the same examples
    torch.manual_seed(SEED)
    try:
        with quiet():
            return lm_eval.evaluate(
                lm=harness, task_dict=loaded, limit=limit, bootstrap_iters=RESAMPLES, log_samples=False
            )
    except torch.cuda.OutOfMemoryError as error:
        raise ValueError(f"task {name} needs more memory than there is; lower the batch (--batch)") from error
    except Exception as error:  # templates and functions of a task may be wrong in any way
        raise ValueError(f"task {name} cannot be evaluated: {reason(error)}") from error


class Harness(HFLM):
    """Lm-eval's model of transformers that tells how far it is, and takes answers of any length."""

    def __init__(self, model: Any, tokenizer: Any, batch: int) -> None:
        super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch)
        self.requests = self.cut = 0
        self.follow("", None)

    def follow(self, task: str, report: Report | None) -> None:
        """From now on, say how far it is with this task."""
        self.task, self.report, self.done, self.total = task, report, 0, 0

    def _loglikelihood_tokens(self, requests: list[Request], **options: Any) -> list[tuple[float, bool]]:
        pieces = [_pieces(request, self.max_length) for request in requests]
        asked = [piece for several in pieces for piece in several]
        self.requests += len(requests)
        self.cut += sum(len(question) + len(answer) > self.max_length + 1 for _, question, answer in requests)
        self.total += len({(*question, *answer[:-1]) for _, question, answer in asked})
        found = iter(super()._loglikelihood_tokens(asked, **options))
        return [_joined([next(found) for _ in several]) for several in pieces]

    def generate_until(self, requests: list[Any], **options: Any) -> list[str]:
        """Also says how many there are."""
        self.requests += len(requests)
        self.total += len(requests)
        written: list[str] = super().generate_until(requests, **options)
        return written

    def _model_call(self, inps: Any, *more: Any, **options: Any) -> Any:
        found = super()._model_call(inps, *more, **options)
        self._tell(len(inps))
        return found

    def _model_generate(self, context: Any, *more: Any, **options: Any) -> Any:
        found = super()._model_generate(context, *more, **options)
        self._tell(len(context))
        return found

    def _tell(self, more: int) -> None:
        self.done += more
        if self.report is not None:
            self.report(self.task, self.done, max(self.total, self.done))


def _pieces(request: Request, context: int) -> list[Request]:
    """An answer that is longer than the context, in pieces that are asked for one after the other: each with what comes
    before it, as far as that fits."""
    text, question, answer = request
    if not answer:
        raise ValueError(f"the answer {text[1]!r} has no tokens of its own after {text[0][-40:]!r}")
    if len(answer) <= context:
        return [request]
    size = max(context // 2, 1)
    return [(None, question + answer[:k], answer[k : k + size]) for k in range(0, len(answer), size)]


def _joined(parts: list[tuple[float, bool]]) -> tuple[float, bool]:
    """Log-likelihoods add up; an answer is what the model would say if all of its pieces are."""
    return parts[0] if len(parts) == 1 else (sum(part[0] for part in parts), all(part[1] for part in parts))
