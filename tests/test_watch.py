"""What people look at: a run from another terminal, curves of any length, pages that show data as it is."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import pytest
import torch
from test_engine import one_thread as one_thread
from test_engine import recipe_of
from test_engine import store as store

from aioli.cli import main, watch
from aioli.files import is_locked
from aioli.report import page, svg
from aioli.report.demo import Outcome
from aioli.report.demo import page as demo_page
from aioli.report.text import spark
from aioli.report.trace import POINTS, Curve, Trace
from aioli.train import Run

AIOLI = {"name": "aioli", "settings": {"rounds": 2, "k": 1}}


@pytest.fixture(scope="module")
def finished(store, tmp_path_factory):
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("runs") / "run"
    Run(recipe_of(store, method=AIOLI), path).train()
    return path


# ---------------------------------------------------------------------- aioli watch


def test_a_finished_run_is_shown_at_once(finished, capsys):
    assert main(["watch", str(finished)]) == 0
    out = capsys.readouterr().out
    for words in (
        "aioli on a, b, c",
        "finished: 60 steps",
        "validation loss of",
        "on held-out data",
        "trained on a",
    ):
        assert words in out
    assert "share of" in out
    assert main(["watch", str(finished), "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["step"] == 60
    assert state["result"]["steps"] == 60
    assert state["proportions"]["steps"][-1] == 60
    assert state["loss"]["steps"] == list(range(6, 60, 6))


def test_a_running_run_is_followed_to_its_end(store, tmp_path):
    """From another process, while it is being trained; leaving it alone changes nothing."""
    recipe = recipe_of(store, method=AIOLI, train={"steps": 400, "threads": 1}, checkpoint={"every": 1000})
    code = (
        "import json, sys\nfrom aioli.train import Run, TrainRecipe\n"
        "Run(TrainRecipe.model_validate(json.loads(sys.argv[1])), sys.argv[2]).train()\n"
    )
    words = [sys.executable, "-c", code, recipe.model_dump_json(), str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as trainer:
        deadline = time.monotonic() + 300
        while not (tmp_path / "run" / "status.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert is_locked(tmp_path / "run")
        command = [sys.executable, "-m", "aioli", "watch", str(tmp_path / "run"), "--every", "0.2"]
        seen = subprocess.run(command, capture_output=True, text=True, timeout=300)
        trainer.communicate(timeout=300)
    assert seen.returncode == 0, seen.stderr
    assert "/400  loss" in seen.stdout
    assert "finished: 400 steps" in seen.stdout
    assert trainer.returncode == 0
    assert sorted(file.name for file in (tmp_path / "run").iterdir()) == [
        "checkpoints", "journal.jsonl", "model", "recipe.yaml", "result.json"
    ]  # fmt: skip


def test_a_run_that_was_killed_is_not_taken_for_a_running_one(store, tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt):
        Run(recipe_of(store, method=AIOLI), tmp_path / "run", interrupt_at(30)).train()
    assert main(["watch", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "go on with: aioli train" in out
    assert "nobody is training it" in out


def interrupt_at(step):
    def report(run):
        if run.engine.step == step:
            raise KeyboardInterrupt

    return report


def test_a_terminal_is_redrawn_and_left_with_ctrl_c(finished, tmp_path):
    """On a real terminal, for a run whose journal has no end yet."""
    lines = (finished / "journal.jsonl").read_text().splitlines(keepends=True)
    run = tmp_path / "run"
    run.mkdir()
    (run / "journal.jsonl").write_text("".join(lines[:-1]))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert holder.stdout.readline() == "held\n"
    primary, secondary = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "aioli", "watch", str(run), "--every", "0.1"], stdout=secondary, stderr=secondary
    )
    os.close(secondary)
    text, deadline = "", time.monotonic() + 300
    while text.count("\x1b[J") < 3 and time.monotonic() < deadline:
        text += os.read(primary, 65536).decode(errors="replace")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=300) == 130
    holder.kill()
    holder.wait()
    holder.stdout.close()
    os.close(primary)
    assert "share of" in text
    assert "\x1b[" in text


HOLD = """
import sys, time
from pathlib import Path
from aioli.files import locked
with locked(Path(sys.argv[1]), "run"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["{}/nowhere"], "is not the directory of a run"), (["{}", "--every", "0"], "must be a positive number")],
)
def test_mistakes_are_one_line(words, complaint, tmp_path, capsys):
    assert main(["watch", *(word.format(tmp_path) for word in words)]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_a_damaged_journal_is_named(finished, tmp_path, capsys):
    (tmp_path / "journal.jsonl").write_text((finished / "journal.jsonl").read_text() + "[1, 2]\n")
    assert main(["watch", str(tmp_path)]) == 2
    assert "is not a line of a journal; it is damaged" in capsys.readouterr().err


def test_an_empty_journal_is_no_failure(tmp_path, capsys):
    (tmp_path / "journal.jsonl").touch()
    assert main(["watch", str(tmp_path), "--once"]) == 2
    assert "nothing has been trained yet" in capsys.readouterr().err


def test_names_cannot_steer_a_terminal(finished, tmp_path, capsys):
    text = (finished / "journal.jsonl").read_text().replace('"groups": ["a"', '"groups": ["\\u001b]0;owned\\u0007"')
    text = re.sub(r', "crc": "\w+"}\n', "}\n", text)  # written without checksums
    (tmp_path / "journal.jsonl").write_text(text)
    trace = Trace(tmp_path).read()
    assert trace.about["groups"][0].startswith("\x1b")
    trace.result = None
    assert "\x1b" not in watch.render(trace)


def test_a_journal_that_was_cut_back_and_grew_again_is_read_anew(finished, tmp_path):
    text = re.sub(r', "crc": "\w+"}\n', "}\n", (finished / "journal.jsonl").read_text())
    lines = text.splitlines(keepends=True)
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(lines[:10]))
    trace = Trace(tmp_path).read()
    longer = [line.replace('"seconds": {', '"seconds": {"more": 1.0, ') for line in lines]
    journal.write_text("".join(longer))
    assert watch.state(trace.read())["step"] == 60
    assert trace.segments == sum('"kind": "segment"' in line for line in lines)


# ---------------------------------------------------------------------- curves


@pytest.mark.parametrize("count", [1, 7, 2 * POINTS, 2 * POINTS + 1, 50_000])
def test_curves_stay_small_and_keep_their_ends(count):
    curve = Curve()
    for step in range(count):
        curve.add(step, [float(step)])
    assert curve.steps[0] == 0
    assert curve.steps[-1] == count - 1
    assert len(curve.steps) <= 2 * POINTS + 1
    assert len(curve.steps) >= min(count, POINTS)
    assert all(step == values[0] for step, values in zip(curve.steps, curve.values, strict=True))
    assert all(a < b for a, b in zip(curve.steps, curve.steps[1:], strict=False))
    gaps = {b - a for a, b in zip(curve.steps[:-1], curve.steps[1:-1], strict=False)}
    assert len(gaps) <= 1


def test_a_trace_goes_on_from_where_it_ended_and_begins_anew_when_cut_back(finished, tmp_path):
    lines = (finished / "journal.jsonl").read_text().splitlines(keepends=True)
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(lines[:8]) + lines[8][:20])
    trace = Trace(tmp_path).read()
    assert trace.result is None
    journal.write_text("".join(lines))
    assert watch.state(trace.read())["step"] == 60
    whole = watch.state(Trace(tmp_path).read())
    assert watch.state(trace) == whole
    journal.write_text("".join(lines[:4]))
    assert trace.read().step < 60


def test_sparks_show_their_range():
    assert spark([0.0, 0.5, 1.0], 0, 1) == "▁▅█"
    assert spark([3.0, 3.0]) == "▁▁"
    assert spark([]) == ""
    assert spark([float("nan"), 1.0, 2.0]) == " ▁█"


# ---------------------------------------------------------------------- pages


class Checked(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.names = [], set()

    def handle_starttag(self, tag, attributes):
        self.names.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attributes)
        if tag not in ("meta", "line", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.names.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_names_cannot_inject_anything_into_a_page(tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    chart = svg.areas([evil, "b"], [1, 2], [[0.5, 0.5], [0.2, 0.8]], evil)
    curves = svg.lines([svg.Series(evil, [0, 1], [1.0, float("nan")], "#123456")], evil, evil)
    parts = [page.table([evil], [[evil]]), page.figure(chart, evil), page.figure(curves, evil), page.commands([evil])]
    text = page.write(tmp_path / "page.html", evil, evil, [*parts, page.heading(evil)]).read_text()
    reader = Checked()
    reader.feed(text)
    assert "script" not in reader.names
    assert reader.open == []
    assert "http://" not in text.replace("http-equiv", "")


def test_axes_have_round_numbers():
    assert svg.ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert svg.ticks(3.13, 4.72) == pytest.approx([3.5, 4.0, 4.5])
    assert svg.ticks(2, 2) == [2]


def test_the_demo_page_shows_both_runs(store, finished, tmp_path):
    Run(recipe_of(store, method="stratified"), tmp_path / "even").train()
    outcome = Outcome.read({"stratified": tmp_path / "even", "aioli": finished}, "aioli", in_domain=True)
    rows = outcome.rows()
    assert [row[0] for row in rows] == ["run", "stratified", "aioli"]
    assert outcome.gain == pytest.approx(1 - float(rows[2][2]) / float(rows[1][2]), abs=2e-3)
    text = demo_page(outcome, tmp_path / "page.html", ["  aioli demo --seed 1   again"]).read_text()
    reader = Checked()
    reader.feed(text)
    assert reader.open == []
    assert text.count("<svg") == 3
    assert "aioli demo --seed 1" in text
