"""Whatever stands in a file or on the command line, a command does its work or refuses in one message, and in bounded
memory.

`HYPOTHESIS_PROFILE=explore` looks much further than the few examples that are fixed by default.
"""

import contextlib
import gzip
import json
import os
import shutil
import tracemalloc

import numpy as np
import pytest
import yaml
from hostile import NAMES, NUMBERS, attempt, changed, civil, damaged, text_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import tiny_store

from aioli.cli import COMMANDS, parser
from aioli.report.server import Folder, answer

FEW = settings.default.max_examples if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else 25
few = settings(max_examples=FEW, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
fewer = settings(few, max_examples=max(8, FEW // 5))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A store, a finished run, a table and a fit, as commands make them."""
    place = tmp_path_factory.mktemp("base")
    tiny_store(place / "store")
    steps = ["train.steps=12", "train.batch=4", "train.threads=1", "checkpoint.every=6"]
    words = ["train", f"data={place / 'store'}", *steps, "-o", place / "run", "--quiet"]
    code, _, err = attempt(*words, "method.settings={rounds: 2, k: 1}")
    assert code == 0, err
    rng = np.random.default_rng(0)
    P = rng.dirichlet(np.ones(3), 12)
    rows = [[k, *p, *(3 - p @ rng.random((3, 2)))] for k, p in enumerate(P)]
    lines = ["run,p_a,p_b,p_c,loss_x,loss_y", *(",".join(map(str, row)) for row in rows)]
    (place / "runs.csv").write_text("\n".join(lines) + "\n")
    code, _, err = attempt("fit", place / "runs.csv", *COLUMNS, "--law", "linear", "-o", place / "fit.json")
    assert code == 0, err
    without_checksums(place)
    return place


def without_checksums(place):
    """As older versions wrote files: a checksum would tell of every change before anything else does."""
    for file in (place / "store" / "manifest.json", place / "fit.json"):
        plain = json.loads(file.read_text())
        file.write_text(json.dumps({key: value for key, value in plain.items() if key != "checksum"}))
    journal = place / "run" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "crc"}) + "\n" for line in lines))


COLUMNS = ("--proportions", "p_*", "--losses", "loss_*")


def copied(base, name, tmp_path):
    place = tmp_path / name
    if not place.exists():
        shutil.copytree(base / name, place)
    return place


# ---------------------------------------------------------------- what is in files


@few
@given(st.data())
def test_manifests(base, tmp_path, data):
    store = copied(base, "store", tmp_path)
    raw = (base / "store" / "manifest.json").read_bytes()
    new = data.draw(changed(json.loads(raw)).map(lambda plain: text_of(plain).encode()) | damaged(raw))
    (store / "manifest.json").write_bytes(new)
    civil("prepare", "--check", store)


@few
@given(st.data())
def test_journals(base, tmp_path, data):
    run = copied(base, "run", tmp_path)
    raw = (base / "run" / "journal.jsonl").read_bytes()
    plain = [json.loads(line) for line in raw.splitlines()]

    def written(lines):
        return "".join(text_of(line) + "\n" for line in (lines if isinstance(lines, list) else [lines])).encode()

    (run / "journal.jsonl").write_bytes(data.draw(changed(plain[:4] + plain[-2:]).map(written) | damaged(raw)))
    civil("watch", run, "--once")
    civil("watch", run, "--json")
    civil("report", run, "-o", tmp_path / "page.html")
    civil("export", run, "--to", "json")
    assert answer(Folder(tmp_path), "/")[0] == 200


@few
@given(st.data())
def test_recipes_of_finished_runs(base, tmp_path, data):
    run = copied(base, "run", tmp_path)
    plain = yaml.safe_load((base / "run" / "recipe.yaml").read_text())
    (run / "recipe.yaml").write_text(text_of(data.draw(changed(plain))))
    civil("report", run, "-o", tmp_path / "page.html")


@fewer
@given(st.data())
def test_fits(base, tmp_path, data):
    plain = json.loads((base / "fit.json").read_text())
    (tmp_path / "fit.json").write_text(text_of(data.draw(changed(plain))))
    civil("solve", tmp_path / "fit.json", "--bootstrap", "0")
    civil("predict", tmp_path / "fit.json", "--mixture", "a=1")
    civil("export", tmp_path / "fit.json", "--to", "json")


MIXTURE = {
    "proportions": {"a": 0.5, "b": 0.5},
    "schedule": [
        {"begin": 0, "end": 5, "proportions": {"a": 0.25, "b": 0.75}},
        {"begin": 5, "end": 10, "proportions": {"a": 0.75, "b": 0.25}},
    ],
}


@few
@given(plain=changed(MIXTURE), system=st.sampled_from(["json", "yaml", "megatron", "mosaicml", "olmo-core", "hf"]))
def test_mixtures(tmp_path, plain, system):
    (tmp_path / "mixture.json").write_text(text_of(plain))
    civil("export", tmp_path / "mixture.json", "--to", system)


@few
@given(st.data())
def test_tables(base, tmp_path, data):
    raw = (base / "runs.csv").read_bytes()
    (tmp_path / "runs.csv").write_bytes(data.draw(damaged(raw)))
    civil("fit", tmp_path / "runs.csv", *COLUMNS, "--law", "linear")
    civil("predict", base / "fit.json", tmp_path / "runs.csv", "--proportions", "p_*")
    civil("export", tmp_path / "runs.csv", "--columns", "p_*", "--row", "1", "--to", "json")


@few
@given(st.data())
def test_parquet(base, tmp_path, data):
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(base / "runs.csv"), tmp_path / "whole.parquet")
    raw = (tmp_path / "whole.parquet").read_bytes()
    (tmp_path / "runs.parquet").write_bytes(data.draw(damaged(raw)))
    civil("fit", tmp_path / "runs.parquet", *COLUMNS, "--law", "linear")


@fewer
@given(st.data())
def test_recipes_to_prepare(tmp_path, data):
    records = "".join(json.dumps({"text": f"words {i} " * 40, "set": "ab"[i % 2]}) + "\n" for i in range(40))
    (tmp_path / "a.jsonl").write_text(records)
    source = {"files": [str(tmp_path / "a.jsonl")], "group_field": "set", "groups": {"a": "A", "b": "B"}}
    tokenizer = {"train": {"vocab_size": 300, "sample_mb": 1.0}}
    plain = {"sources": [source], "tokenizer": tokenizer, "context": 8, "splits": {"val": 0.1, "seed": 0}, "cut": 1000}
    raw = yaml.safe_dump(plain).encode()
    new = data.draw(changed(plain).map(lambda found: text_of(found).encode()) | damaged(raw))
    (tmp_path / "recipe.yaml").write_bytes(new)
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    civil("prepare", tmp_path / "recipe.yaml", "-o", tmp_path / "store")


@fewer
@given(st.data())
def test_recipes_to_train(base, tmp_path, data):
    plain = {
        "data": {
            "store": str(base / "store"),
            "groups": ["code", "books"],
            "targets": ["web"],
            "weights": {"web": 1.0},
        },
        "model": {"preset": "tiny", "config": {"hidden_size": 32}},
        "train": {"steps": 50, "batch": 4, "lr": 0.001, "betas": [0.9, 0.95], "threads": 1},
        "method": {"name": "aioli-ood", "settings": {"k": 1, "rounds": 2}},
        "budget": "restricted",
        "seed": 0,
    }
    (tmp_path / "recipe.yaml").write_text(text_of(data.draw(changed(plain))))
    civil("plan", tmp_path / "recipe.yaml", "--no-timing", "--store", tmp_path / "runs")


@pytest.mark.slow
@fewer
@given(st.data())
def test_checkpoints(base, tmp_path, data):
    """A checkpoint that was changed, and given the digest of what it now says, is refused all the same."""
    from aioli.config import content_hash

    run = copied(base, "run", tmp_path)
    (run / "result.json").unlink(missing_ok=True)
    (run / "journal.jsonl").write_bytes((base / "run" / "journal.jsonl").read_bytes())
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    plain = json.loads((base / "run" / "checkpoints" / newest.name / "state.json").read_text())
    plain.pop("digest")
    new = data.draw(changed(plain))
    with contextlib.suppress(TypeError, ValueError):
        new = {**new, "digest": content_hash(new)}
    (newest / "state.json").write_text(text_of(new))
    civil("train", run / "recipe.yaml", "-o", run, "--quiet")


# ---------------------------------------------------------------- what is on the command line

WORKING = {"demo", "ui", "reproduce", "mix", "compare", "analyze", "train"}
"""What would set to work for long, or serve, is given words that cannot be right."""
SHORT = {"simulate": ["--seeds", "1", "--steps", "20", "--methods", "stratified"]}
"""What needs no words to set to work for long is given little to do."""


@st.composite
def arguments(draw):
    """A command with some of its options and words that nobody means."""
    top = parser()
    commands = next(action for action in top._actions if hasattr(action, "choices") and action.choices)
    name = draw(st.sampled_from(sorted(commands.choices)))
    words = st.sampled_from([word for word in NAMES if "\ud800" not in word]) | st.sampled_from(NUMBERS).map(str)
    given = [name]
    for action in commands.choices[name]._actions:
        if action.dest == "help" or not draw(st.booleans()):
            continue
        given += action.option_strings[-1:]
        if action.nargs != 0:
            given.append(draw(words))
    return given + (["--no-such-option"] if name in WORKING else SHORT.get(name, []))


@settings(few, max_examples=2 * FEW)
@given(words=arguments())
def test_arguments(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = attempt(*words)
    assert code in (0, 2), (words, err)
    assert "Traceback" not in err


@pytest.mark.parametrize("command", [module.__name__.rpartition(".")[2] for module in COMMANDS])
@pytest.mark.parametrize(
    "name", ["no/such/file", "a\x00b", "x" * 5000, "../../etc/passwd", "/dev/null", "-1", "<script>"]
)
def test_every_command_refuses_a_name_that_is_nothing(command, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = {"groups": ["--by", "source"], "fit": list(COLUMNS), "train": ["-o", "run"], "prepare": ["-o", "store"]}
    words = [command, name, *more.get(command, [])]
    code, _, err = attempt(*words)
    assert code == 2, (words, err)
    assert "Traceback" not in err
    assert len(err) < 20_000


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "--groups", str(10**9)],
        ["simulate", "--seeds", str(10**12), "--methods", "stratified"],
        ["simulate", "--steps", str(10**30)],
        ["simulate", "--workers", str(10**9)],
        ["methods", "x" * 100_000],
        ["solve", "fit.json", "--bootstrap", str(10**20)],
    ],
)
def test_numbers_that_cannot_be_meant(words, base, monkeypatch):
    monkeypatch.chdir(base)
    code, _, err = attempt(*words)
    assert code == 2, err
    assert len(err) < 20_000


# ---------------------------------------------------------------- claims that would fill the memory


def peak(*words):
    """Bytes that a command took at most, and what it said."""
    tracemalloc.start()
    try:
        code, _, err = attempt(*words)
        return code, err, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_bomb_of_aliases(tmp_path):
    def bomb(form):
        levels = [f"a{k}: &a{k} {form(f'*a{k - 1}')}" for k in range(1, 20)]
        return "\n".join(["a0: &a0 {x: 1}", *levels])

    for text in (
        bomb(lambda below: f"[{', '.join([below] * 9)}]"),
        bomb(lambda below: f"{{<<: [{', '.join([below] * 9)}]}}"),
        "a: &a [*a]",
    ):
        (tmp_path / "bomb.yaml").write_text(text)
        code, err, size = peak("prepare", tmp_path / "bomb.yaml", "-o", tmp_path / "store")
        assert (code, size < 50e6) == (2, True)
        assert "aliases unfold" in err


@pytest.mark.parametrize("text", ["a: " + "[" * 100_000, "- " * 20_000, '{"a": ' * 20_000])
def test_a_recipe_that_is_nested_too_deep(text, tmp_path):
    (tmp_path / "deep.yaml").write_text(text)
    assert "is not YAML" in civil("prepare", tmp_path / "deep.yaml", "-o", tmp_path / "store")[2]


@pytest.mark.parametrize(
    "tag", ["!!int ''", "!!float ''", "!!bool x", "!!timestamp x", "!!set 3", "!!python/name:os.system"]
)
def test_tags_that_do_not_fit(tag, tmp_path):
    (tmp_path / "tag.yaml").write_text(f"a: {tag}")
    assert "is not YAML" in civil("prepare", tmp_path / "tag.yaml", "-o", tmp_path / "store")[2]


def test_a_field_that_stands_twice(tmp_path):
    (tmp_path / "twice.yaml").write_text("context: 8\nsources: []\ncontext: 9\n")
    err = civil("prepare", tmp_path / "twice.yaml", "-o", tmp_path / "store")[2]
    assert "line 3" in err
    assert "'context' stands there twice" in err


def sparse(path, size=10 << 30):
    with path.open("ab") as file:
        file.truncate(size)


def test_files_of_ten_gigabytes(base, tmp_path, monkeypatch):
    """Holes take no room on the disk, and are not read into memory."""
    monkeypatch.setattr("aioli.files.MOST", 1 << 24)
    store, run = copied(base, "store", tmp_path), copied(base, "run", tmp_path)
    for file in (
        store / "manifest.json",
        run / "journal.jsonl",
        tmp_path / "r.yaml",
        tmp_path / "t.csv",
        tmp_path / "f.json",
    ):
        sparse(file)
    for words in (
        ("prepare", "--check", store),
        ("watch", run, "--once"),
        ("export", run, "--to", "json"),
        ("prepare", tmp_path / "r.yaml", "-o", tmp_path / "new"),
        ("fit", tmp_path / "t.csv", *COLUMNS),
        ("solve", tmp_path / "f.json"),
        ("export", tmp_path / "f.json", "--to", "json"),
    ):
        code, err, size = peak(*words)
        assert (code, size < 300e6) == (2, True), (words, size, err)


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"tokens": 10**12}, "not 2000000000000"),
        ({"tokens": 10**400}, "counts must be whole numbers"),
        ({"tokens": -1}, "counts must be whole numbers"),
        ({"loss": 10**9}, "cannot carry loss"),
    ],
)
def test_a_manifest_that_claims_too_much(claim, said, base, tmp_path):
    store = copied(base, "store", tmp_path)
    manifest = json.loads((base / "store" / "manifest.json").read_text())
    manifest["splits"]["train"]["code"] |= claim
    (store / "manifest.json").write_text(json.dumps(manifest))
    assert said in civil("prepare", "--check", store)[2]


@pytest.mark.parametrize("change", [{"vocabulary": 1 << 31}, {"vocabulary": 1 << 20}, {"groups": ["g"] * 10**6}])
def test_a_manifest_of_impossible_size(change, base, tmp_path):
    store = copied(base, "store", tmp_path)
    manifest = json.loads((base / "store" / "manifest.json").read_text()) | change
    (store / "manifest.json").write_text(json.dumps(manifest))
    assert "is not a manifest" in civil("prepare", "--check", store)[2]


def test_tables_that_unpack_to_too_much(tmp_path, monkeypatch):
    import pyarrow
    import pyarrow.parquet

    monkeypatch.setattr("aioli.fits.reading.MOST", 1 << 22)
    with gzip.open(tmp_path / "a.csv.gz", "wb") as file:
        file.write(b"p_a,loss_x\n" + b"1,1\n" * (1 << 22))
    (tmp_path / "b.csv").write_text(",".join(f"p_{k}" for k in range(200_000)) + "\n")
    (tmp_path / "c.csv").write_text("p_a,loss_x\n" + "1" * 200_000 + "\n")
    one = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 100_000, pyarrow.int32()), pyarrow.array(["x" * 10_000])
    )
    pyarrow.parquet.write_table(pyarrow.table({"p_a": one}), tmp_path / "d.parquet")  # 1 GB of text in a few kB
    rows = pyarrow.table({"p_a": pyarrow.array(np.zeros(20_000_000, np.int8))})
    pyarrow.parquet.write_table(rows, tmp_path / "e.parquet")
    for name in ("a.csv.gz", "b.csv", "c.csv", "d.parquet", "e.parquet"):
        code, err, size = peak("fit", tmp_path / name, *COLUMNS)
        assert (code, size < 100e6) == (2, True), (name, size, err)
        assert "too much for a table of runs" in err or name == "c.csv"


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.txt.zst"])
def test_packed_bombs_are_unpacked_in_bounded_memory(name, tmp_path, monkeypatch):
    import zstandard

    monkeypatch.setattr("aioli.data.reading.LONGEST", 1 << 24)
    pack = gzip.compress if name.endswith(".gz") else zstandard.compress
    (tmp_path / name).write_bytes(pack(b"\0" * (1 << 28)))  # 256 MB in a few kB
    recipe = {"sources": [{"files": str(tmp_path / name), "group": "g"}], "context": 8}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    code, err, size = peak("prepare", tmp_path / "recipe.yaml", "-o", tmp_path / "store")
    assert (code, size < 100e6) == (2, True), (size, err)
    assert "holds a record or document of more than" in err


def test_a_message_cannot_steer_a_terminal(tmp_path):
    (tmp_path / "recipe.yaml").write_text('{"\\u001b[2Jx": 1, "sources": []}')
    err = civil("prepare", tmp_path / "recipe.yaml", "-o", tmp_path / "store")[2]
    assert "�[2Jx" in err
