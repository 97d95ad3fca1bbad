"""Every code block in the README and the docs runs; every shown command output is current; links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny import word_tokenizer

import aioli
from aioli.data import write_store

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, here, tmp_path, monkeypatch):
    """The blocks of a page run one after the other, with stand-ins for what the README's reader has."""
    monkeypatch.chdir(tmp_path)
    tokens = {name: np.arange(640) for name in ("code", "books", "web")}
    write_store("store", dict.fromkeys(("train", "val", "test"), tokens), 64, 640)
    model = {"losses": np.array([3.0, 3.5, 4.0])}

    def train_one_step(model, proportions):
        model["losses"] = model["losses"] * (1 - 1e-4 * proportions)
        return 1000 * proportions

    names = {"model": model, "evaluate": lambda model: model["losses"], "train_one_step": train_one_step}
    if page.name == "adapters.md":
        pytest.importorskip("trl", reason="trl needs Python 3.11")
        names["tokenizer"] = word_tokenizer(["<end>", "sum", "sort", "name", *map(str, range(20))])
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, page.name, "exec"), names)


def test_shown_output_is_current():
    done = subprocess.run([sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [*aioli.names(), "aioli+NAME"])
def test_every_method_is_written_down(name):
    """With its law, parameters, solver, cost, and when it fails."""
    cards = re.split(r"\n### ", (ROOT / "docs" / "each-method.md").read_text())
    card = next((card for card in cards if card.splitlines()[0] == name), "")
    for row in ("law", "parameters", "solver", "cost", "fails"):
        assert re.search(rf"^\| \*\*{row}\*\* \| \S+", card, re.MULTILINE), row


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


LONG = ("pytorch_loop.py", "huggingface_trainer.py", "trl_sft.py", "lightning_trainer.py")
"""Frameworks that take long to start; their adapters have quicker tests of their own."""
EXAMPLES = [
    pytest.param(path, marks=pytest.mark.slow) if path.name in LONG else path
    for path in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run_and_are_short(example):
    assert len(example.read_text().splitlines()) <= 60
    if example.name.startswith("trl"):
        pytest.importorskip("trl", reason="trl needs Python 3.11")
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
