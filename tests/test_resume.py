"""An interrupted `prepare` leaves no trace: killed, stopped or out of space, it ends with the same store."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from test_prepare import WORDS, contents, everything, lines, recipe, texts, write_all_kinds
from tokenizers import Tokenizer, models, pre_tokenizers

import aioli.data.documents
import aioli.data.preparing
from aioli.data import TokenStore, prepare
from aioli.data.store import SPLITS


class StopError(Exception):
    """Stands for a crash."""


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(aioli.data.documents, "_CHUNK_CHARACTERS", 2000)
    monkeypatch.setattr(aioli.data.preparing, "_SAVE_SECONDS", 0.0)


def test_an_interrupted_prepare_goes_on_where_it_stopped(tmp_path, small_chunks, monkeypatch):
    write_all_kinds(tmp_path, texts(50))
    names = ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst", "e.parquet")
    sources = [{"group": name[0], "files": str(tmp_path / name)} for name in names]
    sources += [{"group": "hf", "dataset": str(tmp_path / "hf")}, {"group": "t", "files": str(tmp_path / "txt")}]
    plain = recipe(*sources)
    whole = prepare(plain, tmp_path / "whole")
    encoded = []
    encode = aioli.data.preparing._encode
    monkeypatch.setattr(aioli.data.preparing, "_encode", lambda e, d: encoded.append(len(d)) or encode(e, d))

    def stop_after(steps):
        seen = []

        def show(done, total, words):
            seen.append(done)
            if len(seen) > steps:
                raise StopError

        return show

    stops = 0
    for steps in (0, 1, 2, 3, 5, 8, 1, 13, 2, 10**9):
        try:
            store = prepare(plain, tmp_path / "store", progress=stop_after(steps))
        except StopError:
            stops += 1
            assert not (tmp_path / "store").exists()
    assert stops == 9
    assert store.fingerprint == whole.fingerprint
    assert store.manifest["tokenizer"] == whole.manifest["tokenizer"]
    assert sum(encoded) < 300 + stops * 6 * 15  # only what was in flight was encoded again
    assert not list(tmp_path.glob(".*"))


def test_changed_settings_do_not_reuse_what_they_change(tmp_path, small_chunks):
    (tmp_path / "a.jsonl").write_text(lines(texts(50)))
    source = {"group": "g", "files": str(tmp_path / "a.jsonl")}

    def stop(done, total, words):
        if done:
            raise StopError

    with pytest.raises(StopError):
        prepare(recipe(source), tmp_path / "store", progress=stop)
    (tmp_path / "a.jsonl").write_text(lines(texts(50, 1)))
    store = prepare(recipe(source), tmp_path / "store")
    assert sorted(everything(store, "g")) == sorted(texts(50, 1))


def _swap(file, old, new):
    file.write_text(file.read_text().replace(old, new))


def _flip(file):
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def _claim(file, **claims):
    """As another version, or somebody else, might have written it: without a checksum."""
    plain = {key: value for key, value in json.loads(file.read_text()).items() if key != "checksum"}
    file.write_text(json.dumps({**plain, **claims}))


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("progress.json", lambda file: _swap(file, '"record": ', '"record": 1')),
        ("progress.json", lambda file: _claim(file, something="new")),
        ("progress.json", lambda file: _claim(file, sizes=[])),
        ("progress.json", lambda file: _claim(file, sizes={"../../kept": 0}, sums={"../../kept": 0})),
        ("0.tokens", _flip),
        ("tokenizer", lambda folder: _swap(folder / "tokenizer.json", '"version":', '"virsion":')),
    ],
)
def test_a_damaged_log_is_said_to_be_and_begun_anew(name, harm, tmp_path, small_chunks, caplog):
    (tmp_path / "a.jsonl").write_text(lines(texts(50)))
    (tmp_path / "kept").write_text("something else")
    plain = recipe({"group": "g", "files": str(tmp_path / "a.jsonl")})
    whole = prepare(plain, tmp_path / "whole")
    seen = []

    def stop(done, total, words):
        seen.append(done)
        if len(seen) > 4:
            raise StopError

    with pytest.raises(StopError):
        prepare(plain, tmp_path / "store", progress=stop)
    harm(tmp_path / ".store.building" / name)
    assert prepare(plain, tmp_path / "store").fingerprint == whole.fingerprint
    assert f"{tmp_path / '.store.building' / name} is damaged: what was tokenized before is given up" in caplog.text
    assert (tmp_path / "kept").read_text() == "something else"


COMMAND = [sys.executable, "-m", "aioli", "prepare"]


EAGER = """
import sys
import aioli.data.documents, aioli.data.preparing
from aioli.cli import main
aioli.data.documents._CHUNK_CHARACTERS = 20_000
aioli.data.preparing._SAVE_SECONDS = 0.0
sys.exit(main(["prepare", *sys.argv[1:]]))
"""


def content_of(path):
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


@pytest.mark.slow  # test_soak kills more often, in less time
def test_killed_at_any_moment_it_ends_with_the_same_store(tmp_path):
    for k in range(4):
        (tmp_path / f"g{k}.jsonl.gz").write_bytes(gzip.compress(lines(texts(3000, k)).encode()))
    (tmp_path / "recipe.yaml").write_text(
        json.dumps(recipe({"group_by": "file", "files": "g*.jsonl.gz"}))  # JSON is YAML
    )
    command = [sys.executable, "-c", EAGER, "recipe.yaml", "-o"]
    subprocess.run([*command, "whole"], cwd=tmp_path, check=True, capture_output=True)
    rng, seen = np.random.default_rng(0), []
    progress = tmp_path / ".store.building" / "progress.json"
    for _ in range(8):
        before = content_of(progress)
        process = subprocess.Popen([*command, "store"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        while process.poll() is None and content_of(progress) in (b"", before):
            time.sleep(0.005)  # until it has got further than the last one
        time.sleep(rng.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if progress.is_file():
            found = json.loads(progress.read_text())
            seen.append((found["input"], found["record"]))
    assert seen == sorted(seen)  # never back to the beginning
    assert (seen and seen[0] < seen[-1]) or (tmp_path / "store").exists()
    subprocess.run([*command, "store"], cwd=tmp_path, check=True, capture_output=True)
    assert TokenStore(tmp_path / "store", verify=True).fingerprint == TokenStore(tmp_path / "whole").fingerprint
    assert not list(tmp_path.glob(".*"))


def test_everything_published_was_synced(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text(lines(texts(60)))
    synced = set()
    real = os.fsync

    def fsync(handle):
        synced.add(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    store = prepare(recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}), tmp_path / "store")
    for path in [store.path, *store.path.rglob("*"), tmp_path]:
        assert path.stat().st_ino in synced, path


def test_a_tokenizer_that_a_crash_has_emptied_is_made_again(tmp_path, small_chunks):
    (tmp_path / "a.jsonl").write_text(lines(texts(50)))
    plain = recipe({"group": "g", "files": str(tmp_path / "a.jsonl")})
    calls = []

    def stop(done, total, words):
        calls.append(done)
        if len(calls) > 3:
            raise StopError

    with pytest.raises(StopError):
        prepare(plain, tmp_path / "store", progress=stop)
    (tmp_path / ".store.building" / "tokenizer" / "tokenizer.json").write_text("")
    store = prepare(plain, tmp_path / "store")
    assert sorted(everything(store, "g")) == sorted(texts(50))


def test_only_stores_are_replaced_and_an_old_one_comes_back(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(60)))
    plain = recipe({"group": "g", "files": str(tmp_path / "a.jsonl")})
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="exists and is not a token store; choose another place"):
        prepare(plain, tmp_path / "thesis", replace=True)
    assert (tmp_path / "thesis" / "thesis.tex").read_text() == "years of work"
    first = prepare(plain, tmp_path / "store")
    (tmp_path / ".store.building").mkdir()
    os.replace(tmp_path / "store", tmp_path / ".store.building" / "old")  # killed between two renames
    assert prepare(plain, tmp_path / "store").fingerprint == first.fingerprint
    (tmp_path / ".store.building").mkdir(exist_ok=True)  # killed before it could clean up
    prepare(plain, tmp_path / "store")
    assert not list(tmp_path.glob(".*"))
    (tmp_path / "empty").mkdir()
    assert prepare(plain, tmp_path / "empty").fingerprint == first.fingerprint


def test_a_dataset_that_has_changed_is_noticed(tmp_path):
    def write(seed):
        pyarrow.parquet.write_table(pyarrow.table({"text": texts(60, seed)}), tmp_path / "hf" / "train-0.parquet")

    (tmp_path / "hf").mkdir()
    write(0)
    plain = recipe({"group": "g", "dataset": str(tmp_path / "hf")})
    prepare(plain, tmp_path / "store")
    write(1)
    with pytest.raises(ValueError, match="files that have changed since"):
        prepare(plain, tmp_path / "store")


def test_held_out_documents_do_not_train_the_tokenizer(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(100) + texts(30)))  # some of them twice
    source = {"group": "g", "files": str(tmp_path / "a.jsonl")}
    for splits in ({"val": 20, "test": 10}, {"val": 0.2, "test": 5}, {"val": 0.1, "test": 0.2}):
        plain = recipe(source, splits=splits)
        store = prepare(plain, tmp_path / f"store{splits['val']}{splits['test']}")
        made = aioli.data.preparing.build(aioli.data.preparing.DataRecipe, plain)
        sample = set(aioli.data.preparing._sample(made, aioli.data.preparing.inputs(made), 4.0))
        assert sample == set(contents(store, "train", "g"))
        assert not sample & set(contents(store, "val", "g") + contents(store, "test", "g"))


def test_numbers_of_held_out_documents_are_of_different_documents(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(100) * 30))
    plain = recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}, splits={"val": 20, "test": 20})
    store = prepare(plain, tmp_path / "store")
    assert [len(set(contents(store, split, "g"))) for split in SPLITS] == [60, 20, 20]
    assert "documents removed because an earlier split has them" not in store.manifest["notes"]


@pytest.mark.parametrize("empty", ["some", "all"])
def test_empty_prompts_are_prompts(empty, tmp_path):
    rows = [{"q": "" if i % 3 == 0 or empty == "all" else f"question {i}", "a": f"answer {i}"} for i in range(90)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"group": "g", "files": str(tmp_path / "a.jsonl"), "prompt": "q", "completion": "a"}
    store = prepare(recipe(source, splits={"val": 9, "test": 9}), tmp_path / "store")
    assert store.masked


def test_answers_longer_than_a_sequence_keep_some_of_their_prompt(tmp_path):
    rows = [{"q": f"question {i} " * 20, "a": f"answer {i} " * 40} for i in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"group": "g", "files": str(tmp_path / "a.jsonl"), "prompt": "q", "completion": "a"}
    store = prepare(recipe(source, context=32, splits={"val": 5, "test": 5}), tmp_path / "store")
    mask = store.masks(0, "train")
    assert (mask.sum(1) == 24).all()
    assert (np.diff(mask.astype(int), axis=1) >= 0).all()
    assert store.manifest["notes"]["answers cut at their end to fit a sequence"] == 40


def test_a_model_that_knows_eos_as_a_word_cannot_be_fooled(tmp_path):
    words = ["<unk>", "</s>", *WORDS]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text(lines(["data of </s> model is " * 3] * 60))
    plain = recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}, tokenizer=str(tmp_path / "tokenizer.json"))
    store = prepare({**plain, "splits": {"val": 0, "test": 0}}, tmp_path / "store")
    assert (np.fromfile(store.file("train", 0), dtype=store.dtype) == 1).sum() == 60


def test_what_was_skipped_is_not_taken_for_sound(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(60)) + "{oops\n")
    plain = recipe({"group": "g", "files": str(tmp_path / "a.jsonl")})
    prepare({**plain, "bad_records": "skip"}, tmp_path / "store")
    with pytest.raises(ValueError, match="exists already, made with"):
        prepare(plain, tmp_path / "store")


def test_two_at_once_do_not_disturb_each_other(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(3000)))
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe({"group": "g", "files": "a.jsonl"})))
    command = [*COMMAND, "recipe.yaml", "-o", "store"]
    both = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=300)[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 2])
    if codes == [0, 2]:
        assert any("store is being written by process" in error for error in errors)
    store = TokenStore(tmp_path / "store", verify=True)
    assert sorted(everything(store, "g")) == sorted(texts(3000))
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_is_one_line_and_work_goes_on_later(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(4000)))
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe({"group": "g", "files": "a.jsonl"})))
    limited = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))\n"
        "from aioli.cli import main\nsys.exit(main(['prepare', 'recipe.yaml', '-o', 'store']))"
    )
    found = subprocess.run([sys.executable, "-c", limited], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 2, found.stderr
    assert found.stderr.startswith("aioli prepare: no space left to write")
    assert found.stderr.count("\n") == 1
    assert "run the same command again" in found.stderr
    assert not (tmp_path / "store").exists()
    subprocess.run([*COMMAND, "recipe.yaml", "-o", "store"], cwd=tmp_path, check=True, capture_output=True)
    assert sorted(everything(TokenStore(tmp_path / "store", verify=True), "g")) == sorted(texts(4000))


def test_a_store_that_is_there_is_opened_or_refused_never_overwritten(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(60)))
    plain = recipe({"group": "g", "files": str(tmp_path / "a.jsonl")})
    first = prepare(plain, tmp_path / "store")
    stamp = os.stat(tmp_path / "store" / "manifest.json").st_mtime_ns
    assert prepare(plain, tmp_path / "store").fingerprint == first.fingerprint
    assert os.stat(tmp_path / "store" / "manifest.json").st_mtime_ns == stamp
    with pytest.raises(ValueError, match=r"exists already, made with .*'context': 16.*--replace"):
        prepare({**plain, "context": 32}, tmp_path / "store")
    assert prepare({**plain, "context": 32}, tmp_path / "store", replace=True).context == 32
    (tmp_path / "a.jsonl").write_text(lines(texts(61)))
    with pytest.raises(ValueError, match="files that have changed since"):
        prepare({**plain, "context": 32}, tmp_path / "store")
    with pytest.raises(ValueError, match="exists and is not a token store; choose another place"):
        prepare(plain, tmp_path)


def test_other_splits_do_not_keep_a_tokenizer_that_has_seen_what_they_hold_out(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(100)))
    source = {"group": "g", "files": str(tmp_path / "a.jsonl")}
    with pytest.raises(ValueError, match="in its train split"):
        prepare(recipe(source, splits={"val": 99, "test": 0}, context=5000), tmp_path / "store")
    later = recipe(source, splits={"val": 50, "test": 10})
    made, fresh = prepare(later, tmp_path / "store"), prepare(later, tmp_path / "fresh")
    assert made.manifest["tokenizer"]["fingerprint"] == fresh.manifest["tokenizer"]["fingerprint"]
