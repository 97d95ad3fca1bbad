"""Documents become tokens: nothing lost, nothing in two splits, sources alike, and interruptions leave no trace."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from tokenizers import Tokenizer
from transformers import AutoTokenizer

import aioli.data.documents
import aioli.data.preparing
from aioli.data import TokenStore, prepare
from aioli.data.store import SPLITS

WORDS = ["mixture", "of", "data", "that", "a", "model", "is", "trained", "on", "what", "it", "can", "do"]


def texts(n, seed=0, length=60):
    rng = np.random.default_rng(seed)
    return [f"{seed}.{i} " + " ".join(rng.choice(WORDS, length)) + "\n" for i in range(n)]


def lines(documents, group=None):
    meta = {} if group is None else {"meta": {"set": group}}
    return "".join(json.dumps({"text": text, **meta}) + "\n" for text in documents)


def recipe(*sources, **settings):
    base = {"tokenizer": {"train": {"vocab_size": 300}}, "context": 16, "splits": {"val": 0.1, "test": 0.1}}
    return {**base, "sources": list(sources), **settings}


def contents(store, split, group):
    """The documents of a part, decoded."""
    j = store.groups.index(group)
    tokens = np.fromfile(store.file(split, j), dtype=store.dtype)
    assert tokens.size == store.parts[split][j].tokens
    eos = store.manifest["tokenizer"]["eos"]
    tokenizer = Tokenizer.from_file(str(store.tokenizer / "tokenizer.json"))
    pieces = np.split(tokens, np.flatnonzero(tokens == eos) + 1)
    assert pieces[-1].size == 0
    return [tokenizer.decode(piece[:-1], skip_special_tokens=False) for piece in pieces[:-1]]


def everything(store, group):
    return [text for split in store.parts for text in contents(store, split, group)]


# ---------------------------------------------------------------------- sources


def write_all_kinds(place, documents):
    """The same documents in every form that can be read."""
    raw = lines(documents).encode()
    (place / "a.jsonl").write_bytes(raw)
    (place / "b.jsonl.gz").write_bytes(gzip.compress(raw[:500]) + gzip.compress(raw[500:]))  # two members
    (place / "c.jsonl.zst").write_bytes(zstandard.compress(raw[:700]) + zstandard.compress(raw[700:]))
    (place / "d.json").write_text(json.dumps([{"text": text} for text in documents], indent=1))
    pyarrow.parquet.write_table(pyarrow.table({"text": documents}), place / "e.parquet")
    for kind in ("txt", "md", "py"):
        (place / kind).mkdir()
        for i, text in enumerate(documents):
            (place / kind / f"{i:03d}.{kind}").write_text(text)
    (place / "hf").mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"text": documents}), place / "hf" / "train-00000.parquet")
    datasets.Dataset.from_dict({"text": documents}).save_to_disk(place / "saved")


SOURCES = {
    "jsonl": {"files": "a.jsonl"},
    "gz": {"files": "b.jsonl.gz"},
    "zst": {"files": ["c.jsonl.*"]},
    "json": {"files": "d.json"},
    "parquet": {"files": "e.parquet"},
    "txt": {"files": "txt/*.txt"},
    "md": {"files": "md"},
    "py": {"files": "**/*.py"},
    "dataset": {"dataset": "hf"},
    "dataset at once": {"dataset": "hf", "streaming": False},
    "saved dataset": {"dataset": "saved"},
}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    place = tmp_path_factory.mktemp("kinds")
    write_all_kinds(place, texts(50))
    return place


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_gives_the_same_tokens(kind, kinds, tmp_path, monkeypatch):
    monkeypatch.chdir(kinds)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    store = prepare(recipe({"group": "g", **SOURCES[kind]}), tmp_path / "store")
    assert sorted(everything(store, "g")) == sorted(texts(50))
    reference = prepare(recipe({"group": "g", "files": "a.jsonl"}), tmp_path / "reference")
    assert store.fingerprint == reference.fingerprint
    store.verify()


def test_one_source_is_routed_into_groups_by_a_field(tmp_path):
    rows = [{"text": t, "meta": {"set": name}} for k, name in enumerate(("A", "B", "C")) for t in texts(40, k)]
    rows += [{"text": t, "meta": json.dumps({"set": "A"})} for t in texts(5, 9)]  # JSON inside a string
    np.random.default_rng(0).shuffle(rows)
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"files": str(tmp_path / "*.jsonl"), "group_field": "meta.set"}
    store = prepare(recipe(source), tmp_path / "all")
    assert store.groups == ("A", "B", "C")
    assert sorted(everything(store, "A")) == sorted(texts(40, 0) + texts(5, 9))
    some = prepare(recipe({**source, "groups": {"B": "b", "A": "a"}}), tmp_path / "some")
    assert some.groups == ("a", "b")
    assert some.manifest["notes"]["documents of 'C', which `groups` leaves out"] == 40
    typo = prepare(recipe({**source, "groups": {"B": "b", "AA": "a"}}), tmp_path / "typo")
    assert typo.manifest["notes"]["documents of 'a', which the recipe names"] == 0
    assert typo.manifest["notes"]["documents of 'A', which `groups` leaves out"] == 45
    pyarrow.parquet.write_table(
        pyarrow.table(
            {"meta": [{"set": "x"}] * 40 + [{"set": "y"}] * 40, "text": texts(40) + texts(40, 1), "n": [1] * 80}
        ),
        tmp_path / "mixed.parquet",
    )
    nested = prepare(recipe({"files": str(tmp_path / "mixed.parquet"), "group_field": "meta.set"}), tmp_path / "nested")
    assert sorted(everything(nested, "y")) == sorted(texts(40, 1))


def test_files_and_folders_can_be_groups(tmp_path):
    for name in ("code", "books"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.1.jsonl").write_text(lines(texts(30, len(name))))
        (tmp_path / name / "a.txt").write_text("".join(texts(100, len(name))))
    by_file = prepare(recipe({"files": str(tmp_path / "*.jsonl"), "group_by": "file"}), tmp_path / "1")
    assert by_file.groups == ("books.1", "code.1")
    plain = {"files": str(tmp_path / "*" / "*.txt"), "group_by": "folder"}
    assert prepare(recipe(plain, cut=1000), tmp_path / "2").groups == ("books", "code")


# ---------------------------------------------------------------------- splits


def test_splits_follow_from_content_and_stay_when_data_is_added(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(400)))
    before = prepare(recipe({"group": "g", "files": str(tmp_path / "*.jsonl")}), tmp_path / "before")
    (tmp_path / "0.jsonl").write_text(lines(texts(300, 1)))
    after = prepare(recipe({"group": "g", "files": str(tmp_path / "*.jsonl")}), tmp_path / "after")
    old = set(texts(400))
    for split in SPLITS:
        assert sorted(contents(before, split, "g")) == sorted(t for t in contents(after, split, "g") if t in old)
    held = before.parts["val"][0].documents + before.parts["test"][0].documents
    assert 50 <= held <= 110
    other = recipe({"group": "g", "files": str(tmp_path / "*.jsonl")}, splits={"val": 0.1, "test": 0.1, "seed": 1})
    assert set(contents(prepare(other, tmp_path / "other"), "val", "g")) != set(contents(after, "val", "g"))


def test_existing_splits_are_kept_and_validation_is_halved(tmp_path):
    for name, seed, n in (("train", 0, 60), ("validation", 1, 41)):
        (tmp_path / f"{name}.jsonl").write_text(lines(texts(n, seed)))
    sources = (
        {"group": "g", "files": str(tmp_path / "train.jsonl"), "split": "train"},
        {"group": "g", "files": str(tmp_path / "validation.jsonl"), "split": "val+test"},
    )
    store = prepare(recipe(*sources), tmp_path / "store")
    assert contents(store, "train", "g") == texts(60)
    val, test = contents(store, "val", "g"), contents(store, "test", "g")
    assert (len(val), len(test)) == (21, 20)
    assert sorted(val + test) == sorted(texts(41, 1))
    assert val != sorted(val, key=texts(41, 1).index)[:21] or val != texts(41, 1)[:21]  # shuffled, not the first half


def test_splits_can_be_numbers_of_documents(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(100)))
    plain = recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}, splits={"val": 20, "test": 10})
    store = prepare(plain, tmp_path / "store")
    assert [store.parts[split][0].documents for split in SPLITS] == [70, 20, 10]
    half = recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}, splits={"val": 5, "test": 0.2})
    store = prepare(half, tmp_path / "half")
    assert store.parts["val"][0].documents == 5
    assert 8 < store.parts["test"][0].documents < 35


def test_a_document_in_two_splits_is_removed_from_the_later_and_counted(tmp_path):
    shared = texts(7, 5)
    (tmp_path / "train.jsonl").write_text(lines(texts(30) + shared))
    (tmp_path / "val.jsonl").write_text(lines(shared[:4] + texts(30, 1) + texts(2, 3)))
    (tmp_path / "test.jsonl").write_text(lines(texts(30, 2) + shared[4:] + texts(2, 3)))
    sources = [{"group": f"{s}g"[-1:], "files": str(tmp_path / f"{s}.jsonl"), "split": s} for s in SPLITS]
    sources[2]["group"] = "other"  # also when it is in another group
    store = prepare(recipe(*sources), tmp_path / "store")
    assert store.manifest["notes"]["documents removed because an earlier split has them"] == 9
    assert sorted(contents(store, "train", "g")) == sorted(texts(30) + shared)
    assert sorted(contents(store, "val", "g")) == sorted(texts(30, 1) + texts(2, 3))
    assert sorted(contents(store, "test", "other")) == sorted(texts(30, 2))
    assert store.parts["train"][store.groups.index("other")].tokens == 0  # a target only


def test_long_documents_are_cut_at_line_ends_when_asked(tmp_path):
    book = "".join(texts(300))
    (tmp_path / "book.txt").write_text(book)
    source = {"group": "g", "files": str(tmp_path / "book.txt")}
    for seed in range(8):  # the whole book is in one split, whichever
        with pytest.raises(ValueError, match=r"documents in its \w+ split|all documents are held out") as refused:
            prepare(recipe(source, splits={"val": 0.1, "test": 0.1, "seed": seed}), tmp_path / "whole")
        assert "cut: 20000" in str(refused.value)
    store = prepare(recipe(source, cut=2000), tmp_path / "cut")
    pieces = everything(store, "g")
    assert len(pieces) > 30
    assert all(len(piece) <= 2000 and piece.endswith("\n") for piece in pieces)
    assert sum(map(len, pieces)) == len(book)
    assert all(piece in book for piece in pieces)


# ---------------------------------------------------------------------- tokens


def test_documents_end_with_eos_and_cannot_fake_it(tmp_path):
    tricky = [f"before <|endoftext|> after {i} <|endoftext|>" for i in range(60)]
    (tmp_path / "a.jsonl").write_text(lines(tricky))
    store = prepare(recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}), tmp_path / "store")
    assert sorted(everything(store, "g")) == sorted(tricky)
    tokenizer = AutoTokenizer.from_pretrained(store.tokenizer)
    assert tokenizer.eos_token_id == store.manifest["tokenizer"]["eos"]
    assert len(tokenizer) == store.vocabulary == 300
    assert (np.concatenate([store.rows("g", split).ravel() for split in SPLITS]) < 300).all()


def test_a_tokenizer_can_be_named_and_another_one_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(texts(60)))
    (tmp_path / "b.jsonl").write_text(lines([t.upper() for t in texts(60)]))
    sources = [{"group": "g", "files": str(tmp_path / f"{name}.jsonl")} for name in "ab"]
    first, other = (prepare(recipe(source), tmp_path / f"store{k}") for k, source in enumerate(sources))
    for name in (first.tokenizer, first.tokenizer / "tokenizer.json"):
        again = prepare(recipe(sources[0], tokenizer=str(name)), tmp_path / f"again{name.suffix}")
        assert again.fingerprint == first.fingerprint
        again.require_tokenizer(first.tokenizer)
    with pytest.raises(ValueError, match="made with another tokenizer"):
        first.require_tokenizer(other.tokenizer)
    (tmp_path / "bare").mkdir()
    plain = json.loads((first.tokenizer / "tokenizer.json").read_text().replace("<|endoftext|>", "<finis>"))
    (tmp_path / "bare" / "tokenizer.json").write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=r"does not say how a document ends; give tokenizer\.eos"):
        prepare(recipe(sources[0], tokenizer=str(tmp_path / "bare")), tmp_path / "x")
    named = recipe(sources[0], tokenizer={"name": str(tmp_path / "bare"), "eos": "<finis>"})
    assert prepare(named, tmp_path / "named").fingerprint == first.fingerprint


def test_a_tokenizer_without_a_fast_form_works(tmp_path):
    """transformers can hold tokenizers written in Python; CTRL's is one."""
    place = tmp_path / "slow"
    place.mkdir()
    letters = "abcdefghijklmnopqrstuvwxyz0123456789."
    vocabulary = ["<unk>", "END", *[c + e for c in letters for e in ("@@", "")]]
    tokens = ["<unk>", "END", *letters, *[c + "@@" for c in letters]]
    assert len(set(vocabulary)) == len(set(tokens))
    (place / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (place / "merges.txt").write_text("#version: 0.2\n")
    config = {"tokenizer_class": "CTRLTokenizer", "unk_token": "<unk>", "eos_token": "END"}
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "a.jsonl").write_text(lines(texts(60)))
    store = prepare(
        recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}, tokenizer=str(place)), tmp_path / "store"
    )
    eos = store.manifest["tokenizer"]["eos"]
    assert eos == 1
    assert sum((np.fromfile(store.file(s, 0), dtype=store.dtype) == eos).sum() for s in SPLITS) == 60
    assert AutoTokenizer.from_pretrained(store.tokenizer).get_vocab()["END"] == 1


def test_documents_longer_than_a_batch_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("aioli.data.tokenizer._LONG", 500)
    long = ["".join(texts(50, seed)) for seed in range(30)]
    (tmp_path / "a.jsonl").write_text(lines(long))
    store = prepare(recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}), tmp_path / "store")
    assert sorted(everything(store, "g")) == sorted(long)


def test_instruction_data_has_loss_on_the_answer_only_and_whole_examples(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        {"q": " ".join(rng.choice(WORDS, 5 + i % 7)), "in": {"x": i}, "a": [f"answer {i}", "another"]}
        for i in range(80)
    ]
    rows.append({"q": "long " * 60, "in": {"x": 0}, "a": "the end"})
    (tmp_path / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"group": "task", "files": str(tmp_path / "task.jsonl"), "prompt": "Q: {q} {in.x}\nA:", "completion": "a"}
    store = prepare(recipe(source, context=48, splits={"val": 10, "test": 10}), tmp_path / "store")
    tokenizer = Tokenizer.from_file(str(store.tokenizer / "tokenizer.json"))
    eos, answers, prompts = store.manifest["tokenizer"]["eos"], [], []
    for split in SPLITS:
        assert store.parts[split][0].tokens % 48 == 0
        for row, mask in zip(store.rows(0, split), store.masks(0, split), strict=True):
            edges = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])))
            for begin, end in edges.reshape(-1, 2):
                assert row[end - 1] == eos  # the end of the answer is learnt
                answers.append(tokenizer.decode(row[begin : end - 1]))
            before = np.concatenate([[0], edges[1::2]])[: len(edges) // 2]
            prompts += [tokenizer.decode(row[a:b]) for a, b in zip(before, edges[::2], strict=True)]
    assert sorted(answers) == sorted([f"answer {i}" for i in range(80)] + ["the end"])
    assert sum(prompt.startswith("Q: ") for prompt in prompts) == 80  # the long one lost its beginning
    assert store.manifest["notes"]["prompts cut at their beginning to fit a sequence"] == 1


# ---------------------------------------------------------------------- interruptions


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


COMMAND = [sys.executable, "-m", "aioli", "prepare"]


EAGER = """
import sys
import aioli.data.documents, aioli.data.preparing
from aioli.cli import main
aioli.data.documents._CHUNK_CHARACTERS = 20_000
aioli.data.preparing._SAVE_SECONDS = 0.0
sys.exit(main(["prepare", *sys.argv[1:]]))
"""


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
        process = subprocess.Popen([*command, "store"], cwd=tmp_path, stdout=subprocess.DEVNULL)
        while not progress.is_file() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.2, 1.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if progress.is_file():
            found = json.loads(progress.read_text())
            seen.append((found["input"], found["record"]))
    assert seen == sorted(seen)  # never back to the beginning
    assert seen[0] < seen[-1] or (tmp_path / "store").exists()
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
    from tokenizers import models, pre_tokenizers

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
    errors = [process.communicate(timeout=120)[1] for process in both]
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
