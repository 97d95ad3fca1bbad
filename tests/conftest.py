"""Property tests: no deadlines on shared machines, the same examples every time unless told to explore."""

import os

import pytest
from hypothesis import settings

from aioli import registry

settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(autouse=True)
def forget_methods():
    """Methods that a test defines are gone after it."""
    before = dict(registry._METHODS)
    yield
    registry._METHODS.clear()
    registry._METHODS.update(before)
