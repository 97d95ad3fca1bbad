"""Several jobs of one kind in this process at once, with stacked parameters (`train/stacked.py`)."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aioli.runs.claim import Claim
from aioli.runs.store import LOG, RUN
from aioli.runs.work import Ending, begin, completed, failed, finished, logged, work
from aioli.train.layout import CHECKPOINTS


def work_together(orders: Sequence[Mapping[str, Any]], stop: threading.Event) -> list[Ending]:
    """Carry out orders that can be stacked; those that have begun on their own go on on their own."""
    endings: dict[int, Ending] = {}
    with ExitStack() as held:
        claims: dict[int, Claim] = {}
        for k, order in enumerate(orders):
            folder = Path(order["folder"])
            if finished(folder):
                endings[k] = "done"
            elif not (folder / RUN / CHECKPOINTS).is_dir():
                claim = Claim.make(folder)
                if claim is None:
                    endings[k] = "busy"
                else:
                    claims[k] = held.enter_context(claim)
        if len(claims) > 1:
            chosen = [orders[k] for k in claims]
            found = _train(chosen, list(claims.values()), stop)
            endings |= {k: ending for k, ending in zip(claims, found, strict=True) if ending is not None}
            gc.collect()  # as in `work`
    for k, order in enumerate(orders):
        if k not in endings:
            endings[k] = work(order, stop)
    return [endings[k] for k in range(len(orders))]


def _train(orders: Sequence[Mapping[str, Any]], claims: Sequence[Claim], stop: threading.Event) -> list[Ending | None]:
    """Endings; None for runs that are to be tried on their own, because together they cannot be trained."""
    from aioli.train import DivergedError, StoppedError
    from aioli.train.stacked import train_together

    folders = [Path(order["folder"]) for order in orders]
    for folder in folders[1:]:
        with (folder / LOG).open("a", encoding="utf-8") as log:
            log.write(f"aioli: trained together with {len(folders) - 1} others; see {folders[0] / LOG}\n")
    with logged(folders[0] / LOG):
        try:
            runs = [begin(order, claim, stop) for order, claim in zip(orders, claims, strict=True)]
            found = train_together(runs)
        except StoppedError as stopped:
            print(f"aioli: {stopped}")
            return ["stopped"] * len(orders)
        except Exception:  # one of them spoils it for all: each on its own, which also tells which one
            traceback.print_exc()
            print("aioli: not together, then; one after the other", file=sys.stderr)
            return [None] * len(orders)
        endings: list[Ending | None] = []
        for order, folder, each in zip(orders, folders, found, strict=True):
            if isinstance(each, DivergedError):
                print(f"aioli: {folder.name}: {each}", file=sys.stderr)
                failed(folder, each)
            else:
                completed(order)
            endings.append("failed" if isinstance(each, DivergedError) else "done")
        return endings
