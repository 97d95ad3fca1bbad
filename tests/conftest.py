"""Property tests: no deadlines on shared machines, the same examples every time unless told to explore."""

import os
import signal

import pytest
from hypothesis import settings

from aioli import registry

settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell: commands would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def here(monkeypatch):
    """Commands train in this process."""
    import tiny

    monkeypatch.setattr("aioli.runs.local.LocalExecutor", tiny.here)


@pytest.fixture(autouse=True)
def forget_methods():
    """Methods that a test defines are gone after it."""
    before = dict(registry._METHODS)
    yield
    registry._METHODS.clear()
    registry._METHODS.update(before)
