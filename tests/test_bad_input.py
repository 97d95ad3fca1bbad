"""Bad input to `prepare` and damaged stores: one clear line each, exit code 2, and no half-written store."""

import gzip
import json
import os
import re

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from test_prepare import everything, lines, recipe, texts

from aioli.cli import main
from aioli.data import TokenStore, prepare


def attempt(place, plain, capsys, *more):
    """Run the command; returns its one line of complaint."""
    (place / "recipe.yaml").write_text(json.dumps(plain))
    out = place / "store"
    code = main(["prepare", str(place / "recipe.yaml"), "-o", str(out), *more])
    error = capsys.readouterr().err
    assert code == 2, error
    assert error.count("\n") == 1, error
    assert not out.exists()
    return error


GOOD = lines(texts(60)).encode()
BAD_FILES = {
    "missing": (None, r"no file matches .*a\.jsonl"),
    "wrong field": (b'{"content": "x", "meta": {"url": 1}}\n', r"record 1 has no field 'text'.*content, meta\.url"),
    "not JSON": (GOOD + b"{oops\n", "record 61 is not JSON"),
    "not a record": (GOOD + b'["text"]\n', "record 61 is not a record but list"),
    "not text": (GOOD + b'{"text": 3}\n', "text is int, not text"),
    "empty": (b"", "no documents|no text"),
    "only empty documents": (b'{"text": ""}\n{"text": "  "}\n' * 9, "no documents|no text"),
    "tiny": (b'{"text": "few"}\n' * 3, "cut: 20000|less than one sequence"),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_bad_files(what, tmp_path, capsys):
    content, complaint = BAD_FILES[what]
    if content is not None:
        (tmp_path / "a.jsonl").write_bytes(content)
    error = attempt(tmp_path, recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}), capsys)
    assert re.search(complaint, error), error


def cut_short(tmp_path):
    table = pyarrow.table({"text": texts(3000)})
    pyarrow.parquet.write_table(table, tmp_path / "whole.parquet")
    raw = lines(texts(3000)).encode()
    return {
        "a.jsonl.gz": gzip.compress(raw),
        "a.jsonl.zst": zstandard.compress(raw),
        "a.parquet": (tmp_path / "whole.parquet").read_bytes(),
    }


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_files_are_named(name, damage, tmp_path, capsys):
    content = cut_short(tmp_path)[name]
    half = len(content) // 2
    bad = (
        content[:half]
        if damage == "cut"
        else content[:half] + bytes(b ^ 255 for b in content[half : half + 40]) + content[half + 40 :]
    )
    (tmp_path / name).write_bytes(bad)
    (tmp_path / "good.jsonl").write_text(lines(texts(60)))
    sources = [{"group": "g", "files": str(tmp_path / file)} for file in ("good.jsonl", name)]
    error = attempt(tmp_path, recipe(*sources), capsys)
    assert name in error
    if damage == "cut":
        assert "cut short" in error
    store = prepare(
        recipe(*sources, bad_records="skip"), tmp_path / "store"
    )  # what can be read is kept, and it is said
    assert any(note.startswith("left out") for note in store.manifest["notes"])
    assert set(texts(60)) <= set(everything(store, "g"))


def test_bad_records_can_be_skipped_and_are_counted(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(GOOD + b"{oops\n\n" + b'{"x": 1}\n')
    plain = recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}, bad_records="skip")
    store = prepare(plain, tmp_path / "store")
    assert store.manifest["notes"]["left out: bad records"] == 2
    assert sorted(everything(store, "g")) == sorted(texts(60))


def test_invalid_utf8_is_replaced_and_counted(tmp_path):
    (tmp_path / "bad.jsonl").write_bytes(GOOD + b'{"text": "half \xff a character"}\n' + b'{"text": "\\ud800 alone"}\n')
    (tmp_path / "bad.txt").write_bytes(b"\xef\xbb\xbfLatin-1: caf\xe9, " + b"and more words " * 20)
    sources = [{"group": "g", "files": str(tmp_path / name)} for name in ("bad.jsonl", "bad.txt")]
    store = prepare(recipe(*sources), tmp_path / "store")
    assert store.manifest["notes"]["documents with invalid UTF-8, replaced"] == 3
    found = everything(store, "g")
    assert "half � a character" in found
    assert any(text.startswith("Latin-1: caf�, and") for text in found)


RECIPES = {
    "unknown field": ({"contxt": 3}, "contxt=3: no such field; did you mean context?"),
    "deep unknown field": ({"splits": {"vall": 0.1}}, "splits.vall=0.1: no such field; did you mean val?"),
    "wrong type": ({"context": "long"}, "context='long': must be a valid integer"),
    "out of range": ({"context": 0}, "context=0: must be greater than or equal to 2"),
    "splits": ({"splits": {"val": 0.6, "test": 0.5}}, "leave nothing to train on"),
    "split count": ({"splits": {"val": 1.5}}, "a share below 1 or a whole number"),
    "choice": ({"bad_records": "ignore"}, "bad_records='ignore': must be 'error' or 'skip'"),
    "no sources": ({"sources": []}, "sources=[]"),
    "two kinds": ({"sources": [{"group": "g", "files": "a", "dataset": "b"}]}, "one of files, dataset"),
    "no group": ({"sources": [{"files": "a"}]}, "give one of group, group_field, group_by"),
    "half an instruction": ({"sources": [{"files": "a", "group": "g", "prompt": "p"}]}, "both prompt and completion"),
    "tokenizer": ({"tokenizer": {"train": {"vocab_size": 3}}}, "tokenizer.train.vocab_size=3"),
    "no tokenizer there": ({"tokenizer": "./nowhere/tokenizer.json"}, "there is no such file or directory"),
    "tokenizer of the hub": ({"tokenizer": "nobody/nothing"}, "cannot load tokenizer 'nobody/nothing'"),
    "half a template": ({"sources": [{"files": "a", "group": "g", "prompt": "{q", "completion": "a"}]}, "other half"),
}


@pytest.mark.parametrize("what", RECIPES)
def test_bad_recipes(what, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read from the environment once, long ago
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    change, complaint = RECIPES[what]
    error = attempt(tmp_path, {**recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}), **change}, capsys)
    assert complaint in error


def test_recipe_files_that_are_no_recipes(tmp_path, capsys):
    file = tmp_path / "r.yaml"
    for content, complaint in (
        (b"a: [1\nb: 2", "line 2 is not YAML"),
        (b"a:\n\t- b", "use spaces"),
        (b"- a", "it must be `name: value` lines"),
        (b"\xff", "cannot read the recipe"),
        (b"a: !!python/object/apply:os.system [echo]", "is not YAML"),
    ):
        file.write_bytes(content)
        assert main(["prepare", str(file), "-o", str(tmp_path / "store")]) == 2
        error = capsys.readouterr().err
        assert complaint in error
        assert error.count("\n") == 1
    assert main(["prepare", "nothing-of-the-kind", "-o", str(tmp_path / "store")]) == 2
    assert "neither a file nor a ready recipe (instructions, local, slimpajama-6b" in capsys.readouterr().err
    assert main(["prepare"]) == 2
    assert main(["prepare", "local"]) == 2
    assert main(["prepare", "local", "-o", str(tmp_path / "store"), "context"]) == 2
    assert "'context' is not of the form field=value" in capsys.readouterr().err


def test_settings_may_stand_anywhere(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe({"group": "g", "files": "nothing"})))
    words = [str(tmp_path / "recipe.yaml"), "context=8", "-o", str(tmp_path / "store")]
    for k, line in enumerate(
        (
            ["prepare", *words, "--data", str(tmp_path / "a.jsonl"), "splits.val=0.2"],
            ["prepare", "splits.val=0.2", *words, "--data", str(tmp_path / "a.jsonl")],
        )
    ):
        assert main([*line[:-1], line[-1], "--json"]) == 0, capsys.readouterr().err
        assert json.loads(capsys.readouterr().out)["context"] == 8, k


def test_plain_text_has_no_fields(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("words")
    error = attempt(tmp_path, recipe({"group_field": "set", "files": str(tmp_path / "a.txt")}), capsys)
    assert "is plain text and has no fields" in error


def test_too_many_groups(tmp_path, capsys):
    rows = "".join(json.dumps({"text": "some words", "url": f"u{i}"}) + "\n" for i in range(1100))
    (tmp_path / "a.jsonl").write_text(rows)
    error = attempt(tmp_path, recipe({"group_field": "url", "files": str(tmp_path / "a.jsonl")}), capsys)
    assert "more than 1000 groups" in error


def test_a_dataset_that_is_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = attempt(tmp_path, recipe({"group": "g", "dataset": str(tmp_path / "nowhere")}), capsys)
    assert "cannot open dataset" in error


def test_a_place_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe({"group": "g", "files": str(tmp_path / "a.jsonl")})))
    assert main(["prepare", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "file" / "store")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_damaged_stores_are_refused_by_the_name_of_the_file(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    store = prepare(recipe({"group": "g", "files": str(tmp_path / "a.jsonl")}), tmp_path / "store")
    assert main(["prepare", "--check", str(store.path)]) == 0
    assert "is sound" in capsys.readouterr().out
    for file in [store.file("train", 0), store.tokenizer / "tokenizer.json"]:
        content = file.read_bytes()
        file.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
        assert main(["prepare", "--check", str(store.path)]) == 2
        assert file.name in capsys.readouterr().err
        file.write_bytes(content)
    os.truncate(store.file("val", 0), 2)
    with pytest.raises(ValueError, match=r"val\.0\.tokens\.bin has 2 bytes"):
        TokenStore(store.path)
