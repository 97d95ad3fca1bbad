"""`aioli export`: mixtures and schedules in the form that other systems read."""

import json
import shlex
import sys

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tiny import Here, tiny_recipe, tiny_store

from aioli.cli import main
from aioli.cli.export import phase_files
from aioli.export import SYSTEMS, Phase, Schedule, block
from aioli.export.reading import read
from aioli.export.schedule import Path as Way
from aioli.export.schedule import moving, rounded
from aioli.methods import create
from aioli.runs.conducting import Asked, Conductor
from aioli.runs.job import Setup
from aioli.runs.store import RunStore
from aioli.train.journal import mean_proportions

TRICKY = {"yes": 0.5, "a: b": 0.2, 'it\'s "c"': 0.2, "no\nline": 0.1}
CODE = ["export", "--proportions", "code=0.4,books=0.6"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A store with a run under Aioli, and one with a fixed mixture."""
    place = tmp_path_factory.mktemp("export")
    setup = Setup.of(tiny_recipe(tiny_store(place / "data"), val_final=8))
    store = RunStore(place / "runs")
    methods = {"aioli": create("aioli", rounds=4, k=1), "stratified": create("stratified")}
    asked = [Asked(name, method, setup.problem(0)) for name, method in methods.items()]
    carried = Conductor(store, Here(), setup, setup).conduct(asked)
    return store, {each.asked.label: each.final.key for each in carried}


# ---------------------------------------------------------------------- forms


def test_shares_add_up_to_one():
    rng = np.random.default_rng(0)
    for m in (1, 2, 3, 17, 500):
        p = rng.dirichlet(np.full(m, 0.3))
        shares = rounded({f"g{j}": value for j, value in enumerate(p)})
        assert round(sum(round(value * 10**6) for value in shares.values())) == 10**6
        assert max(abs(shares[f"g{j}"] - p[j]) for j in range(m)) < 2e-6


def test_every_form_keeps_names_and_paths():
    """Quotes, colons, blanks and line breaks come through each format's own reader."""
    paths = {name: f"/data/{k} '\"\n: {name}" for k, name in enumerate(TRICKY)}
    pairs = [word for name, share in TRICKY.items() for word in (f"{share:g}", paths[name])]
    texts = {name: each.text(TRICKY | {"none": 0.0}, paths) for name, each in SYSTEMS.items() if "file" not in name}
    assert shlex.split(texts["megatron"]) == ["--data-path", *pairs]
    assert yaml.safe_load(texts["nemo"]) == {"paths": pairs}
    old = [each for name, share in TRICKY.items() for each in (share, paths[name])]
    assert yaml.safe_load(texts["nemo-1"]) == {"model": {"data": {"data_prefix": old}}}
    streams = {n: {"local": paths[n], "split": "train", "proportion": s} for n, s in TRICKY.items()}
    assert yaml.safe_load(texts["mosaicml"]) == {"train_loader": {"dataset": {"streams": streams}}}
    sources = [{"source_name": n, "target_ratio": s, "paths": [paths[n]]} for n, s in TRICKY.items()]
    assert yaml.safe_load(texts["olmo-core"]) == {"sources": sources}
    for name, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        assert load(texts[name]) == {"proportions": TRICKY | {"none": 0.0}, "paths": paths}
    for name in ("torchtitan", "hf"):
        compile(texts[name], name, "exec")
        assert all(repr(path) in texts[name] for path in paths.values())


def test_what_megatron_would_cut_is_refused():
    text = SYSTEMS["megatron-file"].text({"a b": 0.25, "c": 0.75}, {"c": "/c"})
    assert text == "0.25 /path/to/a_b_text_document\n0.75 /c"
    with pytest.raises(ValueError, match="has a blank in it"):
        SYSTEMS["megatron-file"].text({"a": 1.0}, {"a": "/my data/a"})
    with pytest.raises(ValueError, match="differ by capitals alone"):
        SYSTEMS["torchtitan"].text({"A": 0.5, "a": 0.5})


def test_a_place_to_download_from():
    text = SYSTEMS["mosaicml"].text({"a": 1.0}, {"a": "s3://bucket/a"})
    assert yaml.safe_load(text)["train_loader"]["dataset"]["streams"]["a"]["remote"] == "s3://bucket/a"


def test_the_lines_for_hugging_face_draw_that_mixture(tmp_path):
    for name in ("code", "books"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text("".join(json.dumps({"text": name}) + "\n" for _ in range(400)))
    shares = {"code": 0.25, "books": 0.75}
    names = {}
    exec(SYSTEMS["hf"].text(shares, {name: str(tmp_path / name) for name in shares}), names)
    drawn = [row["text"] for row in names["train"].take(400)]
    assert drawn.count("code") == pytest.approx(100, abs=30)


# ---------------------------------------------------------------------- schedules


def path(*parts):
    """Phases from (steps, share of the first group, tag)."""
    phases, begin = [], 0
    for steps, share, tag in parts:
        phases.append(Phase(begin, begin + steps, (share, 1 - share), tag))
        begin += steps
    return phases


PARTS = st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1), st.sampled_from(["train", "sweep 0"])), min_size=2)


@given(PARTS, st.data())
def test_phases_keep_the_mean_and_cover_all_steps(parts, data):
    whole = moving(["a", "b"], path(*parts))
    if not whole.phases:
        return
    count = data.draw(st.integers(1, len(parts)))
    merged = whole.merged(count)
    assert len(merged.phases) <= count
    assert [p.begin for p in merged.phases] == [0, *(p.end for p in merged.phases[:-1])]
    assert merged.steps == whole.steps
    mean = sum((p.end - p.begin) * p.proportions[0] for p in merged.phases) / merged.steps
    assert mean == pytest.approx(whole.mean["a"])


def test_phases_are_cut_where_the_mixture_changes():
    parts = [(10, 0.1 + 0.001 * k, "train") for k in range(9)] + [(30, 0.8 - 0.001 * k, "train") for k in range(5)]
    merged = moving(["a", "b"], path(*parts)).merged(2)
    assert [(p.begin, p.end) for p in merged.phases] == [(0, 90), (90, 240)]


def test_sweeps_go_with_the_mixture_found_by_them():
    parts = [(1, 0.9, "sweep 0"), (1, 0.1, "sweep 1"), (8, 0.3, "train")] * 2 + [(10, 0.7, "train")]
    merged = moving(["a", "b"], path(*parts)).merged(9)
    assert [(p.begin, p.end) for p in merged.phases] == [(0, 10), (10, 20), (20, 30)]
    assert merged.phases[0].proportions[0] == pytest.approx(0.34)


def test_torchtitan_knows_sources_by_their_order():
    """A group that has no share in one phase is still named there."""
    whole = moving(["a", "b"], path((5, 1.0, ""), (5, 0.5, "")))
    files = list(phase_files(whole, SYSTEMS["torchtitan"], {}).values())
    assert "HFDataSource(dataset='b', weight=0.0)" in files[0]
    assert "'b'" not in next(iter(phase_files(whole, SYSTEMS["hf"], {}).values()))


def test_a_path_can_be_stretched():
    whole = moving(["a", "b"], path((1, 0.2, ""), (2, 0.4, ""), (1, 0.6, "")))
    assert [(p.begin, p.end) for p in whole.stretched(10).phases] == [(0, 2), (2, 8), (8, 10)]
    with pytest.raises(ValueError, match="too short for 3 phases"):
        whole.stretched(2)
    with pytest.raises(ValueError, match="the same for all steps"):
        Schedule(("a",), (1.0,)).stretched(5)


def test_very_long_runs_take_bounded_memory(monkeypatch):
    monkeypatch.setattr("aioli.export.schedule.SEGMENTS", 64)
    way = Way()
    for step in range(5000):
        way.add(Phase(step, step + 1, (float(step % 2), 1.0 - step % 2)))
    assert len(way.phases) <= 64
    assert way.thinned
    assert (way.phases[0].begin, way.phases[-1].end) == (0, 5000)
    assert moving(["a", "b"], way.phases).mean["a"] == pytest.approx(0.5)


def test_a_run_that_moved(runs, tmp_path, capsys):
    """Its segments, its mean, a file for each phase, and a curriculum."""
    store, keys = runs
    folder = store.run_folder(keys["aioli"])
    assert main(["export", str(folder), "--to", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["kind"] == "segment" and line["end"] > line["begin"]]
    assert [(p["begin"], p["end"]) for p in found["schedule"]] == [(s["begin"], s["end"]) for s in trained]
    mean = mean_proportions(folder / "journal.jsonl")
    assert list(found["proportions"].values()) == pytest.approx(mean, abs=1e-6)

    assert main(["export", keys["aioli"][:10], "--store", str(store.path), "--to", "olmo-core"]) == 0
    out, said = capsys.readouterr()
    assert [s["target_ratio"] for s in yaml.safe_load(out)["sources"]] == pytest.approx(mean, abs=1e-6)
    assert "takes one mixture for the whole run; this is its mean over the run" in said

    blends = tmp_path / "blends"
    words = ["export", str(folder), "--to", "megatron-file", "--phases", "3", "--steps", "3000", "-o", str(blends)]
    assert main(words) == 0
    assert "steps" in capsys.readouterr().out
    told = json.loads((blends / "phases.json").read_text())["phases"]
    assert 1 < len(told) <= 3
    assert told[-1]["end"] == 3000
    for phase in told:
        written = (blends / phase["file"]).read_text().split()
        assert [float(w) for w in written[::2]] == [s for s in phase["proportions"].values() if s > 0]
    assert main(words) == 2
    assert "--replace overwrites it" in capsys.readouterr().err
    assert main([*words, "--replace"]) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["blends"]

    curriculum = ["export", str(folder), "--to", "mosaicml", "--phases", "3"]
    assert main(curriculum) == 2
    assert "--tokens-per-step" in capsys.readouterr().err
    assert main([*curriculum, "--tokens-per-step", "64"]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    callback = found["callbacks"]["curriculum_learning"]
    spans = [callback["duration"], *(mix["duration"] for mix in callback["schedule"])]
    assert found["max_duration"] == f"{sum(int(span.removesuffix('tok')) for span in spans)}tok" == f"{30 * 64}tok"
    for dataset in (found["train_loader"]["dataset"], *(mix["dataset"] for mix in callback["schedule"])):
        assert sum(stream["proportion"] for stream in dataset["streams"].values()) == pytest.approx(1)


def test_what_was_written_can_be_read_again(runs, tmp_path, capsys):
    store, keys = runs
    for name in ("json", "yaml"):
        file = tmp_path / f"schedule.{name}"
        assert main(["export", str(store.run_folder(keys["aioli"])), "--to", name, "-o", str(file)]) == 0
        again = read(str(file))
        assert again.mean == pytest.approx(read(str(store.run_folder(keys["aioli"]))).mean, abs=1e-6)
        assert again.steps == 30
    capsys.readouterr()


def test_a_run_that_did_not_move_or_is_not_finished(runs, tmp_path, capsys):
    store, keys = runs
    assert main(["export", keys["stratified"][:10], "--store", str(store.path), "--to", "megatron"]) == 0
    assert capsys.readouterr().out.startswith("--data-path 0.333334 /path/to/code_text_document 0.333333 ")
    assert main(["export", keys["stratified"][:10], "--store", str(store.path), "--to", "hf", "--phases", "2"]) == 2
    assert "the same for all steps" in capsys.readouterr().err
    half = tmp_path / "half"
    half.mkdir()
    lines = (store.run_folder(keys["aioli"]) / "journal.jsonl").read_text().splitlines(keepends=True)
    segments = [k for k, line in enumerate(lines) if '"kind": "segment"' in line]
    (half / "journal.jsonl").write_text("".join(lines[: segments[len(segments) // 2]]))
    assert main(["export", str(half), "--to", "json"]) == 0
    assert "the run is not finished" in capsys.readouterr().err
    (half / "journal.jsonl").write_text(lines[0])
    assert main(["export", str(half), "--to", "json"]) == 2
    assert "has not trained anything yet" in capsys.readouterr().err


# ---------------------------------------------------------------------- other sources, and mistakes


def test_fits_solutions_and_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(3), 12)
    L = 2 + np.exp(-P @ np.array([2.0, 0.3, 0.1]))
    rows = [",".join(map(str, [*p.round(6), loss])) for p, loss in zip(P, L, strict=True)]
    (tmp_path / "runs.csv").write_text("\n".join(["p_code,p_books,p_web,loss", *rows]))
    assert main(["fit", "runs.csv", "--proportions", "p_*", "--losses", "loss", "-o", "fit.json"]) == 0
    assert main(["solve", "fit.json", "--bootstrap", "0", "-o", "solution.json"]) == 0
    best = json.loads((tmp_path / "solution.json").read_text())["proportions"]
    assert read("solution.json").mean == pytest.approx(best)
    assert read("fit.json").mean == pytest.approx(best, abs=1e-6)
    assert list(read("runs.csv", columns="p_*", row=3).mean.values()) == pytest.approx(P[2], abs=1e-5)
    (tmp_path / "long.csv").write_text("group,share\ncode,0.25\nbooks,0.75\n")
    (tmp_path / "plain.yaml").write_text("code: 0.25\nbooks: 0.75\n")
    for name in ("long.csv", "plain.yaml"):
        assert read(name).mean == {"code": 0.25, "books": 0.75}
    capsys.readouterr()
    assert main(["export", "runs.csv", "--columns", "p_*", "--to", "json"]) == 2
    assert "has 12 rows; say which with --row" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["export"], "for which system?"),
        (["export", "--to", "json"], "give either a run"),
        ([*CODE, "--to", "megatorn"], "did you mean megatron?"),
        ([*CODE, "--to", "composer"], "did you mean mosaicml?"),
        ([*CODE, "--to", "hf", "--paths", "cod=/x"], "there is no group 'cod'; there are code, books"),
        ([*CODE, "--to", "hf", "--paths", "code=/x,boks=/y"], "there is no group 'boks'"),
        ([*CODE, "--to", "hf", "--paths", "code=/x", "--paths", "code=/y"], "names code twice"),
        ([*CODE, "--to", "hf", "--paths", "code="], "is not a path"),
        ([*CODE, "--to", "hf", "--phases", "0"], "--phases 0 must be at least 1"),
        ([*CODE, "--to", "hf", "--steps", "5"], "the same for all steps"),
        ([*CODE, "--to", "hf", "-o", "a.yaml"], "must end with .py for hf"),
        ([*CODE, "--to", "hf", "-o", "no/a.py"], "there is no directory no"),
        (["export", "--proportions", "a=0.4,b=0.5", "--to", "hf"], "the shares sum to 0.9, not 1"),
        (["export", "--proportions", "a=40,b=60", "--to", "hf"], "divide by 100"),
        (["export", "--proportions", "a=-0.5,b=1.5", "--to", "hf"], "a=-0.5 is not a share"),
        (["export", "--proportions", "a=0.5,a=0.5", "--to", "hf"], "names a twice"),
        (["export", "--proportions", "a=50%", "--to", "hf"], "0.2, not 20%"),
        (["export", "--proportions", "a", "--to", "hf"], "is not NAME=SHARE"),
        (["export", "--proportions", "a=nan", "--to", "hf"], "is not a share"),
        (["export", "nowhere", "--to", "hf"], "nowhere is not there"),
        (["export", "other.json", "--to", "hf"], "other.json holds no mixture"),
        (["export", "gap.json", "--to", "hf"], "does not begin where the last one ended"),
        (["export", "words.md", "--to", "hf"], "neither JSON, YAML nor a table"),
    ],
)
def test_mistakes_are_one_line(words, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text('{"kind": "aioli study", "proportions": 3}')
    phases = [{"begin": 0, "end": 5, "proportions": {"a": 1.0}}, {"begin": 6, "end": 9, "proportions": {"a": 1.0}}]
    (tmp_path / "gap.json").write_text(json.dumps({"proportions": {"a": 1.0}, "schedule": phases}))
    (tmp_path / "words.md").write_text("# words")
    assert main(words) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert complaint in said
    assert said.count("\n") == 1


def test_files_are_not_overwritten_unasked(tmp_path, capsys):
    out = str(tmp_path / "mixture.yaml")
    assert main([*CODE, "--to", "olmo-core", "-o", out]) == 0
    before = (tmp_path / "mixture.yaml").read_text()
    assert main(["export", "--proportions", "x=1", "--to", "olmo-core", "-o", out]) == 2
    assert "is there already; --replace overwrites it" in capsys.readouterr().err
    assert (tmp_path / "mixture.yaml").read_text() == before
    assert main(["export", "--proportions", "x=1", "--to", "olmo-core", "-o", out, "--replace"]) == 0
    assert "source_name: x" in (tmp_path / "mixture.yaml").read_text()


def test_json_and_the_list(capsys):
    assert main([*CODE, "--to", "megatron", "--paths", "books=/b,with,commas", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"][0]["text"] == block("megatron", {"code": 0.4, "books": 0.6}).replace(
        "/path/to/books_text_document", "/b,with,commas"
    )
    assert main(["export", "--list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(SYSTEMS)


def test_names_do_not_steer_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["export", "--proportions", "a\x1b[2Jb=1", "--to", "megatron", "--paths", "a\x1b[2Jb=/x\x1b[2Jy"]) == 0
    assert "\x1b" not in "".join(capsys.readouterr())
