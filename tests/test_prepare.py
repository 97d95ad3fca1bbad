"""Documents become tokens: nothing lost, nothing in two splits, sources alike, and interruptions leave no trace."""

import gzip
import json

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from aioli.data import prepare
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
