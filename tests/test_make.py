"""What `make` would do: examples and benchmarks are one command from a clean checkout, in words that a shell takes."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))
NEEDS = {"trl_sft": "train,trl", "lightning_trainer": "train,lightning"}
"""The extras of an example; of the others: train."""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def commands(target, tmp_path):
    """The commands of a target in a checkout where nothing is installed; none is carried out."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}  # as by hand
    done = subprocess.run(["make", "--dry-run", target], cwd=tmp_path, capture_output=True, text=True, env=ours)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "target",
    [
        *(f"example-{name}" for name in EXAMPLES),
        *("demo", "test", "test-slow", "lint", "audit", "load", "format", "bench", "soak", "peers", "docs", "site"),
    ],
)
def test_a_shell_takes_the_commands(target, tmp_path):
    done = subprocess.run(["sh", "-n"], input=commands(target, tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_run_after_what_it_needs_is_installed(name, tmp_path):
    *before, last = commands(f"example-{name}", tmp_path).splitlines()
    assert last.endswith(f".venv/bin/python examples/{name}.py")
    extras = re.findall(r'-e "\.\[(.*?)\]"', "\n".join(before))
    assert extras[-1] == NEEDS.get(name, "train")


def test_an_example_that_is_not_there_installs_nothing(tmp_path):
    with pytest.raises(AssertionError, match="No rule to make target 'example-nothing'"):
        commands("example-nothing", tmp_path)


@pytest.mark.parametrize("target", ["bench", "peers"])
def test_peers_are_measured_with_both_environments_whole(target, tmp_path):
    """Theirs is apart, with transformers 4; ours needs `datasets` for what is measured in it."""
    before = commands(target, tmp_path).partition("python benchmarks/peers.py")[0]
    assert re.search(r'\.venv/bin/python -m pip install .* -c constraints\.txt -e "\.\[train,hub\]"', before)
    assert re.search(r'\.venv-bench/bin/python -m pip .* -c benchmarks/constraints\.txt -e "\.\[bench\]"', before)
