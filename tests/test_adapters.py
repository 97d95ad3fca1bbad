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


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (
            "import transformers.trainer_callback as place; del place.ExportableState",
            "cannot import name 'ExportableState'",
        ),
        ("import importlib.metadata as place; place.version = lambda name: place.distribution('no-' + name)", "no-"),
    ],
    ids=["another version", "without what it needs"],
)
def test_a_framework_that_cannot_be_loaded_is_told_in_its_own_words(before, said):
    code = f"{before}\ntry: import aioli.adapters.huggingface\nexcept ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "this adapter's framework cannot be loaded (" in done.stdout
    assert said in done.stdout
    assert done.stdout.strip().endswith("-e '.[train]'")


@pytest.mark.parametrize(
    ("frameworks", "rest"),
    [
        ({"torch"}, ["data", "cli", "export", "fits", "groups", "report", "runs", "simulate", "train"]),
        ({"transformers"}, ["adapters.pytorch", "adapters.lightning", "data", "cli"]),
        ({"lightning", "trl"}, ["adapters.pytorch", "adapters.huggingface"]),
    ],
)
def test_without_a_framework_the_rest_can_be_imported(frameworks, rest):
    code = (
        "import sys, importlib.metadata as packages\n"
        f"sys.modules.update(dict.fromkeys({frameworks!r}))\n"
        "version = packages.version\n"
        f"packages.version = lambda name: version('no-' * (name in {frameworks!r}) + name)\n"  # others ask this way
        "import " + ", ".join(f"aioli.{name}" for name in rest)
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_adapters_are_not_loaded_before_they_are_asked_for():
    code = "import sys, aioli.adapters; print({'torch', 'transformers', 'lightning', 'trl'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
