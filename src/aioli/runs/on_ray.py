"""Jobs as tasks of Ray: on this machine or a cluster, which schedules them and repeats those whose node is lost.

The run store must lie where all nodes see it. Needs the extra `ray`.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from importlib import import_module
from typing import Any

from aioli.runs.work import died

TRIES = 3
"""How often Ray repeats a job whose process or node was lost."""


class RayExecutor:
    """Tasks of Ray."""

    def __init__(
        self,
        address: str | None = None,
        cpus: float = 1,
        gpus: float = 0,
        load: Sequence[str] = (),
        workers: int | None = None,
        threads: int = 1,
    ) -> None:
        """`cpus` and `gpus` are what each run needs; `workers` is how many CPUs a cluster that is started here has."""
        if min(cpus, gpus) < 0 or cpus + gpus <= 0:
            raise ValueError(f"cpus={cpus:g} and gpus={gpus:g}: each run needs some of at least one of them")
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise ValueError("this needs ray, which is not installed; pip install 'aioli-mix[ray]'") from None
        self.ray = ray
        self.load = [os.path.abspath(file) for file in load]
        self.started = not ray.is_initialized()
        if self.started:
            if address is not None and address not in ("auto", "local"):
                _reachable(address)
            alone = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
            try:
                ray.init(address=address or "local", log_to_driver=False, logging_level="error", **alone)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ValueError(f"cannot reach Ray at {address}: {str(error).splitlines()[0]}") from None
        total = ray.cluster_resources()
        for name, wanted in (("CPU", cpus), ("GPU", gpus)):
            if address is None and wanted > total.get(name, 0):  # a cluster may still grow
                raise ValueError(
                    f"each run is to have {wanted:g} {name}, but Ray has {total.get(name, 0):g} in all: it would wait "
                    "for ever"
                )
        each = [total.get(name, 0) // wanted for name, wanted in (("CPU", cpus), ("GPU", gpus)) if wanted]
        self.workers = max(1, int(min(each)))
        env = {"env_vars": {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}}
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=TRIES, runtime_env=env)(carry_out)
        self._running: dict[Future[str], Any] = {}

    def submit(self, orders: Sequence[Mapping[str, Any]]) -> list[Future[str]]:
        """Have jobs done; what comes of each is an `Ending`."""
        return [self._submit(order) for order in orders]

    def _submit(self, order: Mapping[str, Any]) -> Future[str]:
        task = self._task.remote(dict(order), self.load)
        found: Future[str] = Future()
        self._running[found] = task

        def ended(inner: Future[str]) -> None:
            error = inner.exception()
            if error is None:
                found.set_result(inner.result())
            elif isinstance(error, self.ray.exceptions.TaskCancelledError):
                found.set_result("stopped")
            else:  # its process or node was lost too often
                died(order, f"was lost ({type(error).__name__})")
                found.set_result("failed")

        task.future().add_done_callback(ended)
        return found

    def close(self) -> None:
        """Stop what is being trained; it goes on from its last checkpoint when it is asked for again."""
        for future, task in self._running.items():
            if not future.done():
                self.ray.cancel(task, force=False)
        self._running.clear()
        if self.started:
            self.ray.shutdown()


def _reachable(address: str) -> None:
    """Refuse, in seconds, an address that Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=10):
            pass
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot reach Ray at {address} ({error}); give HOST:PORT of its head node, or auto") from None


def carry_out(order: dict[str, Any], load: list[str]) -> str:
    """What a task of Ray does."""
    from aioli.registry import load as load_methods
    from aioli.runs.work import work

    load_methods(load)
    return work(order, threading.Event())
