"""A worker process of the local executor: lines of JSON come in, lists of orders to be done together; endings go out.

When the lines end, because the one who gave them has finished or died, a run that is being trained saves itself and
stops.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import sys
import threading
from typing import Any


def main() -> None:
    """Work until there are no more orders."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get among the endings
    stop = threading.Event()
    orders: queue.SimpleQueue[list[dict[str, Any]] | None] = queue.SimpleQueue()

    def read() -> None:
        try:
            for line in sys.stdin:
                orders.put(json.loads(line))
        except ValueError:  # cut short: who gave the orders has died
            pass
        finally:
            stop.set()
            orders.put(None)

    threading.Thread(target=read, daemon=True).start()
    from aioli.registry import load
    from aioli.runs.together import work_together
    from aioli.runs.work import work

    load(json.loads(sys.argv[1]))
    while (some := orders.get()) is not None and not stop.is_set():
        endings = work_together(some, stop) if len(some) > 1 else [work(some[0], stop)]
        if not gc.get_freeze_count():
            gc.freeze()  # what is loaded by now stays, and need not be looked through after every run
        try:
            channel.write(json.dumps(endings) + "\n")
            channel.flush()
        except BrokenPipeError:  # nobody waits for it any more
            os._exit(0)


if __name__ == "__main__":
    main()
