"""Adapters without their frameworks: the package imports, and an adapter says what to install."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("adapter", "framework", "extra"),
    [
        ("pytorch", "torch", "train"),
        ("huggingface", "transformers", "train"),
        ("huggingface", "torch", "train"),
        ("lightning", "lightning", "lightning"),
        ("lightning", "torch", "lightning"),
    ],
)
def test_a_missing_framework_is_named_with_its_extra(adapter, framework, extra):
    code = (
        f"import sys; sys.modules[{framework!r}] = None\n"  # as if it were not installed
        "import aioli, aioli.adapters\n"
        f"try: import aioli.adapters.{adapter}\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"this adapter needs {framework}: pip install 'aioli-mix[{extra}]'" in done.stdout


def test_adapters_are_not_loaded_before_they_are_asked_for():
    code = "import sys, aioli.adapters; print({'torch', 'transformers', 'lightning', 'trl'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
