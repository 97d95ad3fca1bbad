"""`aioli fit`, `predict` and `solve` as people use them."""

import json

import numpy as np
import pytest

from aioli.cli import main
from aioli.files import read_json

GROUPS = ("code", "books", "<b>web</b>")
A = np.array([[2.0, 0.3, 0.1], [0.2, 1.5, 0.4]])


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(3), 30).round(3)
    L = 2 + np.exp(-(P / P.sum(1, keepdims=True)) @ A.T) + 0.002 * rng.normal(size=(30, 2))
    mixtures = [",".join(["index", *(f"mix {g}" for g in GROUPS)])]
    losses = ["index,law,medicine"]
    for k in range(30):
        mixtures.append(",".join([str(k), *map(str, P[k])]))
        losses.append(f"{k},{L[k, 0]},{L[k, 1] if k else ''}")
    (tmp_path / "mix.csv").write_text("\n".join(mixtures))
    (tmp_path / "loss.csv").write_text("\n".join(losses))
    (tmp_path / "tokens.yaml").write_text("code: 30e9\nbooks: 5e9\n'<b>web</b>': 200e9\n")
    return tmp_path


FIT = ["fit", "mix.csv", "loss.csv", "--proportions", "mix *", "-o", "fit.json"]


def test_from_tables_to_a_mixture(tables, capsys):
    assert main([*FIT, "--report", "fit.html", "--test", "mix.csv", "loss.csv"]) == 0
    out = capsys.readouterr().out
    for words in (
        "30 runs, 3 groups → 2 targets",
        "1 losses are missing",
        "made to sum to 1",
        "MSE, 5-fold",
        "test table",
    ):
        assert words in out
    assert main(["solve", "fit.json", "--bootstrap", "20", "--report", "solve.html"]) == 0
    out = capsys.readouterr().out
    for words in ("95% interval", "as good", "certified", "uniform", "best run", "to paste"):
        assert words in out
    for page in ("fit.html", "solve.html"):
        text = (tables / page).read_text()
        assert "<b>web" not in text
        assert "&lt;b&gt;web" in text
    assert main(["predict", "fit.json", "mix.csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 32


def test_everything_as_json(tables, capsys):
    assert main([*FIT, "--json"]) == 0
    fit = json.loads(capsys.readouterr().out)
    assert fit["schema"] == 1
    assert fit["held_out"]["runs"] == [30, 29]
    assert json.loads((tables / "fit.json").read_text())["runs"]["losses"][0][1] is None
    caps = ["--available", "tokens.yaml", "--budget", "100e9", "--max-epochs", "2"]
    assert main(["solve", "fit.json", "--json", "--bootstrap", "10", *caps, "--weight", "law=3", "-o", "s.json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == read_json(tables / "s.json")
    assert found["bounds"]["books"] == [0.0, 0.1]
    assert found["proportions"]["books"] <= 0.1 + 1e-9
    assert found["certified_gap"] < 1e-9
    assert found["compared"]["natural"]["proportions"]["books"] == pytest.approx(5 / 235)
    assert main(["predict", "fit.json", "--mixture", "code=0.5,books=0.5", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["predictions"]
    assert row["losses"]["law"] == pytest.approx(2 + np.exp(-1.15), abs=0.02)


def test_auto_says_by_how_much(tables, capsys):
    assert main([*FIT, "--law", "auto"]) == 0
    out = capsys.readouterr().out
    assert "more than the smallest" in out
    assert "→ " in out
    assert main(["solve", "fit.json", "--block", "megatron"]) == 0
    assert capsys.readouterr().out.startswith("--data-path 0.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "none.csv"], "no such file"),
        (["fit", "mix.csv", "loss.csv", "tokens.csv"], "3 tables"),
        (["fit", "mix.csv", "loss.csv", "--law", "cubic"], "no law 'cubic'"),
        (["fit", "mix.csv", "loss.csv", "--law", "trasnfer"], "did you mean 'transfer'"),
        (["fit", "mix.csv", "loss.csv", "--law", "transfer:terms=x"], "must be a number"),
        (["fit", "mix.csv", "loss.csv", "--law", "linear:terms=2"], "no setting 'terms'"),
        (["fit", "mix.csv", "loss.csv", "--where", "step"], "COLUMN=VALUE"),
        (["fit", "mix.csv", "loss.csv", "--folds", "1"], "at least 2"),
        (["fit", "mix.csv", "loss.csv", "-o", "no/fit.json"], "no directory"),
        (["fit", "mix.csv", "loss.csv", "--report", "fit.txt"], "--report fit.txt must end"),
        (["solve", "loss.csv"], "not JSON"),
        (["solve", "fit.json", "--max", "x=1"], "no group 'x'"),
        (["solve", "fit.json", "--max", "code"], "not a number"),
        (["solve", "fit.json", "--max", "code=0.1,books=0.1,<b>web</b>=0.1"], "caps"),
        (["solve", "fit.json", "--budget", "1e9"], "need --available"),
        (["solve", "fit.json", "--available", "tokens.yaml"], "needs --budget"),
        (["solve", "fit.json", "--bootstrap", "1"], "at least 10"),
        (["solve", "fit.json", "--target", "law", "--weight", "medicine=2"], "counts for nothing"),
        (["solve", "fit.json", "--max", "code=20%"], "0.2, not 20%"),
        (["solve", "fit.json", "--available", "none.yaml", "--budget", "1e9"], "no such file"),
        (["fit", "mix.csv", "mix.csv"], "given twice"),
        (["fit", "mix.csv", "loss.csv", "--law", "transfer", "--ridge", "1"], "--ridge is for"),
        (["fit", "mix.csv", "loss.csv", "--seed", "-1"], "--seed -1"),
        (["predict", "fit.json", "--mixture", "code=0.5,code=0.5"], "twice"),
        (["solve", "fit.json", "--target", "x"], "no target 'x'"),
        (["predict", "fit.json"], "which mixtures"),
        (["predict", "fit.json", "--mixture", "code=0.5"], "sum"),
        (["predict", "fit.json", "loss.csv"], "no column for group"),
    ],
)
def test_mistakes_are_told_in_one_line(tables, capsys, arguments, words):
    assert main(FIT) == 0
    capsys.readouterr()
    assert main(arguments) == 2
    err = capsys.readouterr().err.strip()
    assert words in err
    assert len(err.splitlines()) == 1
