"""`aioli compare`, `mix` and `plan` as a person uses them."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tiny import tiny_store

from aioli.cli import main
from aioli.export import SYSTEMS, block
from aioli.files import read_json
from aioli.report.compare import markdown, page
from aioli.runs.comparison import Comparison, Row, score_of
from aioli.stats import interval

COMMAND = [sys.executable, "-m", "aioli"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("data") / "store")


def words(data, place, *more):
    settings = ["train.steps=40", "train.batch=4", "train.threads=1", "checkpoint.every=4"]
    return [f"data={data.path}", *settings, "--store", str(place), *more]


COMPARED = ["--methods", "grid-search:runs=4", "doremi", "aioli:rounds=2,k=1", "--seeds", "2", "--budget", "restricted"]


def numbers(text):
    """A comparison without times, which are never the same."""
    found = json.loads(text)
    for score in found["scores"]:
        del score["probing"]
        for row in score["rows"]:
            del row["seconds"]
    return found


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A comparison that was not interrupted."""
    place = tmp_path_factory.mktemp("whole")
    files = [str(place / f"table{ending}") for ending in (".html", ".md", ".json", ".txt")]
    outs = [word for file in files for word in ("-o", file)]
    done = subprocess.run(
        [*COMMAND, "compare", *words(data, place / "runs"), *COMPARED, *outs, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return place, done.stdout


def test_what_compare_says(whole):
    place, said = whole
    found = json.loads(said)
    assert found == read_json(place / "table.json")
    scores = {score["method"]: score for score in found["scores"]}
    assert list(scores) == ["stratified", "grid-search:runs=4", "doremi", "aioli:rounds=2,k=1"]
    assert [score["extra_runs"] for score in scores.values()] == [0, 4, 2, 0]
    assert [score["extra_steps"] for score in scores.values()] == [0, 0.5, 0.5, 0]
    base = {row["seed"]: row for row in scores["stratified"]["rows"]}
    for name, score in scores.items():
        assert len(score["rows"]) == 2
        differences = [row["perplexity"] - base[row["seed"]]["perplexity"] for row in score["rows"]]
        assert score["difference"] == pytest.approx(np.mean(differences))
        for row in score["rows"]:
            assert row["perplexity"] == pytest.approx(np.mean(np.exp(list(row["losses"].values()))))
        if name != "stratified":
            assert score["interval"] == pytest.approx(interval(differences))
    for ending in (".md", ".txt", ".html"):
        text = (place / f"table{ending}").read_text()
        assert "aioli:rounds=2,k=1" in text.replace("\\", "")
        assert "0.5 S" in text
    assert "<script" not in (place / "table.html").read_text()


def test_compare_again_trains_nothing_and_says_the_same(whole, data, capsys):
    place, said = whole
    assert main(["compare", *words(data, place / "runs"), *COMPARED, "--json"]) == 0
    assert numbers(capsys.readouterr().out) == numbers(said)


def _kill_everything(process):
    """The command and its workers, as `kill -9` of a whole job would."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    for number in [process.pid, *map(int, children)]:
        try:
            os.kill(number, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _interrupted(data, place, kills, longest, seed):
    rng = random.Random(seed)
    hit = 0
    for k in range(kills):
        process = subprocess.Popen(
            [*COMMAND, "compare", *words(data, place / "runs"), *COMPARED, "--json"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(rng.uniform(0.0, longest))
        hit += process.poll() is None
        if k % 2:
            _kill_everything(process)
        else:  # only the command: its workers notice and save themselves
            process.kill()
        process.wait()
    done = subprocess.run(
        [*COMMAND, "compare", *words(data, place / "runs"), *COMPARED, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, hit


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_numbers(whole, data, tmp_path):
    said, hit = _interrupted(data, tmp_path, 3, 8.0, 1)
    assert numbers(said) == numbers(whole[1])
    assert hit


@pytest.mark.slow
def test_killed_twenty_times_it_ends_with_the_same_numbers(whole, data, tmp_path):
    said, hit = _interrupted(data, tmp_path, 20, 7.0, 2)
    assert numbers(said) == numbers(whole[1])
    assert hit >= 5


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_interrupted_it_saves_itself_and_says_how_to_go_on(data, tmp_path, number, code):
    more = ["--workers", "1", "--methods", "stratified", "train.steps=100000"]
    process = subprocess.Popen(
        [*COMMAND, "compare", *words(data, tmp_path / "runs", *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    while not list((tmp_path / "runs").rglob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == code
    assert "go on with: aioli compare" in said
    assert main(["runs", "--store", str(tmp_path / "runs"), "--state", "unfinished"]) == 0


def test_what_mix_says(here, data, tmp_path, capsys):
    place = tmp_path / "runs"
    out = tmp_path / "mix.json"
    assert main(["mix", *words(data, place, "--method", "dml:runs=4", "-o", str(out), "--quiet")]) == 0
    said = capsys.readouterr().out
    assert "predicted, 40 steps" in said
    assert "measured, test" in said
    assert "cost: 4 extra runs, 160 extra steps (4 S);" in said
    assert "--data-path" in said
    found = json.loads(out.read_text())
    assert sum(found["proportions"].values()) == pytest.approx(1)
    assert found["path"] is None
    for name in SYSTEMS:
        assert main(["mix", *words(data, place, "--method", "dml:runs=4", "--block", name, "--quiet")]) == 0
        assert capsys.readouterr().out.strip() == block(name, found["proportions"])
    assert main(["mix", *words(data, place, "--method", "aioli:rounds=2,k=1", "--json")]) == 0
    moved = json.loads(capsys.readouterr().out)
    assert moved["path"][-1]["until"] == 40
    assert moved["cost"]["extra_runs"] == 0
    assert moved["predicted"] is None
    assert main(["mix", *words(data, place, "--method", "aioli:rounds=2,k=1", "--quiet")]) == 0
    assert "on the way" in capsys.readouterr().out


def test_only_the_proportions(here, data, tmp_path, capsys):
    place = tmp_path / "runs"
    only = ["--only-proportions", "--quiet"]
    assert main(["mix", *words(data, place, "--method", "doge", *only, "--budget", "restricted")]) == 0
    assert "measured" not in capsys.readouterr().out
    assert len(list(place.rglob("result.json"))) == 1
    assert main(["mix", *words(data, place, "--method", "aioli+doge:rounds=2,k=1", *only)]) == 2
    assert "no proportions without it" in capsys.readouterr().err
    assert len(list(place.rglob("result.json"))) == 1


def test_the_plan_is_what_is_trained(data, tmp_path, capsys, whole):
    assert main(["plan", *words(data, tmp_path / "runs"), *COMPARED, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {m["method"]: m["extra_runs"] for m in found["methods"]} == {
        "stratified": 0,
        "grid-search:runs=4": 4,
        "doremi": 2,
        "aioli:rounds=2,k=1": 0,
    }
    assert [stage["steps"] for stage in found["methods"][2]["stages"]] == [10, 10, 40]
    assert found["seconds"] > 0
    assert not (tmp_path / "runs").exists()
    assert main(["plan", *words(data, whole[0] / "runs"), *COMPARED, "--no-timing"]) == 0
    said = capsys.readouterr().out
    trained = len(list((whole[0] / "runs").rglob("result.json")))
    assert f"in all {trained} different runs" in said
    assert main(["plan", *words(data, tmp_path, "--methods", "stratified", "doremi", "doge", "--no-timing")]) == 0
    assert "in all 5 different runs" in capsys.readouterr().out
    assert main(["plan", *words(data, tmp_path, "--methods", "regmix-linear:runs=2", "aioli", "--no-timing")]) == 0
    assert "regmix-linear:runs=2 cannot run here: regmix-linear needs at least m=3 runs" in capsys.readouterr().out


def test_a_method_that_cannot_be_rehearsed_does_not_cost_the_plan(data, tmp_path, capsys, monkeypatch):
    def broken(policy):
        return 1 // 0 if "fork_loss" in policy.needs else 0

    monkeypatch.setattr("aioli.runs.job.fork_steps", broken)
    assert main(["plan", *words(data, tmp_path), "--methods", "stratified", "aioli-fork", "--no-timing"]) == 0
    said = capsys.readouterr().out
    assert "in all 1 different runs" in said
    assert "aioli-fork cannot run here: ZeroDivisionError" in said


def test_the_plan_counts_steps_on_copies(data, tmp_path, capsys):
    towards = ["data.targets=[code]", "data.groups=[books,web]"]
    plan = ["plan", *words(data, tmp_path), *towards, "--methods", "stratified", "aioli-fork:delta=0.3", "--no-timing"]
    assert main([*plan, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [method["fork_steps"] for method in found["methods"]] == [0, 12]
    assert [method["extra_steps"] for method in found["methods"]] == [0, 0]
    assert (found["run_steps"], found["fork_steps"]) == (80, 12)
    assert main(plan) == 0
    assert "aioli-fork:delta=0.3 also trains up to about 0.3 S on copies of the model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["compare", "--methods", "aioly"], "did you mean 'aioli'"),
        (["compare", "--methods", "aioli:etta=1"], "did you mean 'eta'"),
        (["compare", "--seeds", "0"], "--seeds 0 must be at least 1"),
        (["compare", "-o", "table.pdf"], "must end with"),
        (["compare", "-o", "nowhere/table.md"], "no directory nowhere"),
        (["compare", "--budget", "tight"], "budget"),
        (["compare", "--budget", "-1"], "a positive number"),
        (["compare", "--workers", "0"], "must be at least 1"),
        (["compare", "--address", "auto"], "--executor ray"),
        (["compare", "--load", "nowhere.py"], "there is no such file"),
        (["compare", "data.weights={poems: 2}"], "'poems'"),
        (["compare", "proxy.model=tinny", "--methods", "doge"], "proxy.model='tinny'"),
        (["mix", "--method", "all"], "aioli compare takes several"),
        (["mix", "--method", "aioli+dml:runs=5"], 'base={"runs": …}'),
        (["plan", "--methods", "dml:runs=1", "--no-timing"], "dml needs at least m+1=4 runs"),
        (["compare", "data.weights={code: -1}"], "data.weights.code=-1"),
        (["compare", "--executor", "ray", "--address", "127.0.0.1:9"], "cannot reach Ray at 127.0.0.1:9"),
        (["mix", "--method", "dml", "proxy.steps=30", "--budget", "0.5"], "raise the budget"),
        (["plan", "--workers", "0"], "must be at least 1"),
    ],
)
def test_mistakes_are_one_line(data, tmp_path, command, complaint, capsys):
    assert main([command[0], *words(data, tmp_path / "runs"), *command[1:]]) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.err.count("\n") == 1


def test_mistakes_in_methods_of_ones_own(here, data, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "from aioli.methods import method\n"
        "@method(law='–', parameters='–', solver='–')\n"
        "def early(problem):\n    '''A mistake at once.'''\n    return [][1]\n"
        "@method(law='–', parameters='–', solver='–')\n"
        "def late(problem):\n    '''A mistake later.'''\n"
        "    yield [problem.static([1, 0, 0], 3)]\n    raise KeyError('oops')\n"
        "@method(law='–', parameters='–', solver='–')\n"
        "def picky(problem):\n    '''Made-up losses do not suit it.'''\n"
        "    r = yield [problem.static([1, 0, 0], 3)]\n"
        "    if r[0].start_loss[0] > 4.5:\n        raise ValueError('too high')\n"
        "    return problem.final_static([1, 0, 0])\n"
        "@method(law='–', parameters='–', solver='–')\n"
        "def endless(problem):\n    '''Until the loss is low.'''\n"
        "    loss, k = 9, 0\n"
        "    while loss > 4:\n        k += 1\n"
        "        loss = (yield [problem.static([1, 0, 0], 3, seed=k)])[0].start_loss[0]\n"
        "    return problem.final_static([1, 0, 0])\n"
    )
    methods = ["--methods", "early", "late", "picky", "endless"]
    assert main(["compare", *words(data, tmp_path / "runs"), "--load", str(file), *methods, "--json"]) == 1
    found = {score["method"]: score for score in json.loads(capsys.readouterr().out)["scores"]}
    assert found["early"]["failed"]["0"].startswith("IndexError")
    assert found["late"]["failed"]["0"].startswith("KeyError")
    for name in ("picky", "endless", "stratified"):
        assert found[name]["failed"] == {}
        assert len(found[name]["rows"]) == 1
    assert "(mine.py, line 10)" in found["late"]["failed"]["0"]
    assert main(["plan", *words(data, tmp_path / "runs"), "--load", str(file), "--no-timing", *methods]) == 0
    assert "late cannot run here: nobody knows how many runs it takes" in capsys.readouterr().out
    for text, complaint in (("store: x", "NameError"), ("def (", "line 1")):
        file.write_text(text)
        assert main(["compare", *words(data, tmp_path / "runs"), "--load", str(file)]) == 2
        assert complaint in capsys.readouterr().err


def test_words_may_stand_in_any_order(data, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"data: {data.path}\ntrain: {{steps: 40, batch: 4}}\n")
    plan = ["plan", "--no-timing", "--store", str(tmp_path / "runs")]
    for order in (
        [str(recipe), "--methods", "dml", "train.steps=50"],
        ["--methods", "dml", str(recipe), "train.steps=50"],
        ["train.steps=50", str(recipe), "--methods", "dml"],
    ):
        assert main([*plan, *order]) == 0
        assert "S=50" in capsys.readouterr().out
    assert main([*plan, str(recipe), "--methods", "aioli+dml:base={'runs':5}"]) == 0
    assert "5 × 40" in capsys.readouterr().out


# ---------------------------------------------------------------- what is reported


def row(seed, perplexity):
    seconds = {"train": 1.0, "probe": 0.1}
    return Row(seed, "ab", perplexity, np.log(perplexity), {"a|b": 1.0}, {"x": 1.0}, 0, 0.0, seconds)


def test_differences_are_paired_and_seeds_without_a_partner_do_not_count():
    base = {0: row(0, 10.0), 1: row(1, 20.0), 2: row(2, 30.0)}
    score = score_of("mine", {0: row(0, 9.0), 1: row(1, 18.0), 3: row(3, 1.0), 2: "run 12 failed"}, base)
    assert score.difference == pytest.approx(-1.5)
    assert (score.pairs, score.wins) == (2, 2)
    assert score.interval == pytest.approx(interval([-1.0, -2.0]))
    assert score.failed == {2: "run 12 failed"}
    assert score_of("mine", {0: row(0, 9.0)}, base).interval is None
    assert score_of("mine", {0: "no"}, base).perplexity is None


def comparison(*scores):
    return Comparison(["x"], ["a|b"], 10, "restricted", [0, 1], "test", "tiny", "tiny", "f", {"a|b": 1.0}, scores)


def test_reports_escape_what_comes_from_data(tmp_path):
    evil = "<script>alert(1)</script>|[x](http://y)"
    base = {0: row(0, 10.0), 1: row(1, 20.0)}
    found = comparison(score_of("stratified", base, base), score_of(evil, {0: row(0, 9.0), 1: evil}, base))
    text = page(found, tmp_path / "page.html").read_text()
    assert "<script" not in text
    table = markdown(found)
    assert "<script" not in table.replace("\\<", "")
    assert all(line.replace("\\|", "").count("|") == 10 for line in table.splitlines() if line.startswith("|"))
