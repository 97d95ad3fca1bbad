"""Every command in the README and the docs works, on data and runs that are small; every recipe is accepted.

What is shown is what is run, but for numbers that make it small (`made_small`). What cannot be run here is in
`NOT_RUN`, with the reason; of these, aioli's own commands are still parsed.
"""

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import datasets
import docs_world
import pytest
import tiny
import yaml

import aioli.runs.local
from aioli.cli import _parse, main
from aioli.data.recipe import DataRecipe
from aioli.recipe import build
from aioli.runs import RunStore
from aioli.train.recipe import TrainRecipe

PAGES = [docs_world.ROOT / "README.md", *sorted((docs_world.ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LANGUAGES = {"python", "bash", "console", "yaml", "json", "text"}
NOT_RUN = {
    "make ": "installs an environment of its own; CI runs `make lint` and `make test`",
    "aioli demo": "takes minutes; tests/test_demo.py runs it with fewer steps",
    "aioli prepare local": "tokenizes 16 MB; tests/test_local.py and benchmarks read that text",
    "aioli ui": "serves until it is stopped; tests/test_report.py asks it",
    "torchrun": "wants eight processes; tests/test_distributed.py starts two",
    "accelerate launch": "wants GPUs; tests/test_distributed.py starts two processes",
    "aioli eval run-a run-b": "the paper's tasks are on the hub; tests/test_eval.py has tasks of its own",
    "aioli eval run --tasks": "tasks of the hub",
    "aioli eval run --limit": "tasks of the hub",
    "aioli eval some-model": "tasks of the hub",
    "aioli eval run --task-dir my-tasks --tasks": "arc_easy is on the hub",
    "aioli eval run": "tasks of the hub",
}
"""Commands that are not run, by how they begin, and why."""
RUN = {"aioli eval run --task-dir my-tasks"}
"""Commands that are run although they begin like one that is not."""
TRAINING = {"train", "mix", "compare", "plan", "analyze"}


def commands() -> list[str]:
    """Every command of bash blocks, and the commands whose output is shown, each once."""
    found = []
    for page in PAGES:
        for language, text in BLOCK.findall(page.read_text()):
            lines = text.replace("\\\n", " ").splitlines()
            if language == "bash":
                found += [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]
            elif lines and lines[0].startswith("$ "):
                found.append(shlex.join(shlex.split(lines[0][2:])))
            elif language == "console":
                found += [shlex.join(words) for line in lines if (words := shlex.split(line, comments=True))]
    return list(dict.fromkeys(found))


def reason(command: str) -> str | None:
    """Why a command is not run."""
    if command in RUN:
        return None
    return next((why for words, why in NOT_RUN.items() if command.startswith(words)), None)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    place = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(aioli.runs.local, "LocalExecutor", tiny.here)
        docs_world.build(place)
    return place


MANY = ("aioli compare", "aioli mix", "aioli analyze")
TESTED = ("aioli reproduce all",)
"""Every recipe of these is tried out in tests/test_experiments.py."""
SMALLER = {
    r"(?<==)pythia-\d+m": "tiny",
    r"\b(train|proxy)\.steps=\d+": r"\1.steps=40",
    r"^context=\d+": "context=16",
    r"^splits\.val=0\.\d+": "splits.val=0.2",
}


def made_small(words: list[str], keys: list[str]) -> list[str]:
    """A command with a tiny model, few steps and seeds, and with keys that exist."""
    words = [{"3f2a": keys[0], "77b0": keys[1]}.get(word, word) for word in words]
    for long, short in SMALLER.items():
        words = [re.sub(long, short, word) for word in words]
    verb, words = words[0], words[: words.index(">")] if ">" in words else words
    if "--seeds" in words:
        words[words.index("--seeds") + 1] = "1"
    if verb in TRAINING:
        words += [each for each in docs_world.SMALL if not any(w.startswith(each.split("=")[0]) for w in words)]
    if verb == "runs" and "--steps" in words:
        words[words.index("--steps") + 1] = "40"
    more = {
        "simulate": ["--workers", "1", *([] if "--seeds" in words else ["--seeds", "1"])],
        "watch": ["--once"],
        "solve": ["--bootstrap", "10"],
        "analyze": ["--sweep", "4", "--ahead", "4", "--starts", "1"],
        "reproduce": [] if {"--list", "--show", "--dry-run"} & set(words) else ["--dry-run"],
        "compare": [] if "--methods" in words else ["--methods", "stratified", "dml", "aioli"],
    }
    return words + more.get(verb, [])


def to_run() -> list[Any]:
    """Those that are run. Of commands that train many runs the shortest of each, the others with the slow tests."""
    found = [each for each in commands() if not reason(each)]
    many = [sorted((each for each in found if each.startswith(words)), key=len) for words in MANY]
    late = {each for alike in many for each in alike[1:]} | {each for each in found if each.startswith(TESTED)}
    return [pytest.param(each, marks=pytest.mark.slow) if each in late else each for each in found]


@pytest.mark.parametrize("command", to_run(), ids=str)
def test_command(command, world, here, tmp_path, monkeypatch, capsys):
    """With everything that a reader has, but for what the command itself is to make."""
    place = shutil.copytree(world, tmp_path / "here")
    monkeypatch.chdir(place)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")  # not the user's
    words = shlex.split(command)
    assert words[0] == "aioli", f"{command}: say in NOT_RUN why it is not run"
    keys = list(RunStore("aioli-runs").keys())
    shutil.copy("train.yaml" if words[1] in TRAINING else "prepare.yaml", "recipe.yaml")
    made = [Path(words[k + 1]) for k, word in enumerate(words) if word == "-o"]
    for path in made:
        if path.exists():
            (shutil.rmtree if path.is_dir() else Path.unlink)(path)
    code = main(made_small(words[1:], keys))
    said = capsys.readouterr()
    assert code == 0, said.err
    assert all(path.exists() for path in made)
    assert said.out or made


@pytest.mark.parametrize("command", [each for each in commands() if reason(each) and "aioli " in each], ids=str)
def test_command_that_is_not_run_is_still_one(command):
    _parse(shlex.split(re.sub(r"^.*?aioli ", "", command)))


def test_reasons_are_for_commands_that_are_there():
    for words in [*NOT_RUN, *RUN]:
        assert any(command.startswith(words) for command in commands()), words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_say_what_they_are(page):
    """A block without a language would be run by nobody."""
    for language, text in BLOCK.findall(page.read_text()):
        assert language in LANGUAGES, f"```{language}\n{text}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_are_accepted(page):
    for language, text in BLOCK.findall(page.read_text()):
        if language != "yaml" or page.name == "evaluation.md":  # that one is a task, which a command above evaluates
            continue
        plain = yaml.safe_load(text)
        build(DataRecipe if "sources" in plain else TrainRecipe, plain)
