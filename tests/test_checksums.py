"""What was written is what is read: checksums in documents and journals, and nothing that a kill left stays."""

import fcntl
import json
import logging
import os

import pytest

from aioli import files
from aioli.data import TokenStore, write_store
from aioli.files import check_text, disk_trouble, read_json, sealed, sealed_text, unsealed, write_json
from aioli.runs.claim import Claim, owner_of
from aioli.train.journal import Journal, read, torn
from aioli.train.layout import tidy


def test_a_document_says_what_it_said_or_is_refused(tmp_path, caplog):
    file = tmp_path / "a.json"
    write_json(file, {"loss": 3.25, "of": {"code": [1, 2]}})
    assert read_json(file) == {"loss": 3.25, "of": {"code": [1, 2]}}
    text = file.read_text()
    file.write_text(text.replace("3.25", "3.35"))
    assert read_json(file) is None
    with pytest.raises(ValueError, match=r"a\.json does not match its checksum"):
        unsealed(json.loads(file.read_text()), file)
    file.write_text(text.replace('"checksum"', '"chesksum"'))
    assert read_json(file) == {"loss": 3.25, "of": {"code": [1, 2]}}
    assert "a.json is damaged: only the name of its checksum" in caplog.text


def test_older_files_are_read_and_said_to_be_unchecked(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(files, "_SAID", set())
    with caplog.at_level(logging.WARNING, "aioli"):
        assert unsealed({"loss": 1}, tmp_path / "old.json", "fit") == {"loss": 1}
        unsealed({"loss": 1}, tmp_path / "other.json", "fit")
        (tmp_path / "journal.jsonl").write_text('{"kind": "run"}\n')
        assert [line for line, _ in read(tmp_path / "journal.jsonl")] == [{"kind": "run"}]
    assert [record.getMessage().split()[2] for record in caplog.records] == [
        str(tmp_path / "old.json"),
        str(tmp_path / "journal.jsonl"),
    ]


def test_every_bit_of_a_journal_counts(tmp_path):
    file = tmp_path / "journal.jsonl"
    journal = Journal(file)
    for step in range(3):
        journal.append({"kind": "look", "step": step, "loss": 3.5})
    journal.close()
    whole, sound = file.read_bytes(), [line for line, _ in read(file)]
    assert sound == [{"kind": "look", "step": step, "loss": 3.5} for step in range(3)]
    for at in range(len(whole) - 1):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match=r"journal\.jsonl: .*damaged"):
            list(read(file))


def test_a_torn_line_is_left_out_said_and_removed(tmp_path):
    file = tmp_path / "journal.jsonl"
    journal = Journal(file)
    journal.append({"kind": "run"})
    journal.close()
    assert torn(file) is None
    with file.open("ab") as out:
        out.write(b'{"kind": "segm')
    assert [line for line, _ in read(file)] == [{"kind": "run"}]
    assert "cut short (14 bytes)" in torn(file)
    again = Journal(file)
    assert again.torn == 14
    again.close()
    assert torn(file) is None


def test_a_recipe_with_its_checksum_in_a_comment(tmp_path):
    text = sealed_text("train: {lr: 0.004}\n")
    check_text(text, tmp_path)
    check_text("train: {lr: 0.1}\n", tmp_path)  # by hand
    with pytest.raises(ValueError, match="does not match its checksum"):
        check_text(text.replace("0.004", "0.001"), tmp_path)


def test_a_store_whose_manifest_or_array_was_changed_is_refused(tmp_path):
    store = write_store(tmp_path / "store", {"train": {"a": list(range(32))}}, 16, 40)
    array = store.file("train", 0)
    content = array.read_bytes()
    array.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(ValueError, match=r"train\.0\.tokens\.bin does not match"):
        TokenStore(tmp_path / "store").verify(["a"])
    manifest = tmp_path / "store" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"vocabulary": 40', '"vocabulary": 41'))
    with pytest.raises(ValueError, match=r"manifest\.json does not match its checksum"):
        TokenStore(tmp_path / "store")


def test_temporary_files_of_the_dead_are_removed_and_of_the_living_not(tmp_path):
    dead, living = tmp_path / ".a.json.deaddead", tmp_path / ".a.json.living00"
    dead.touch()
    with living.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_json(tmp_path / "a.json", {"x": 1})
        assert sorted(os.listdir(tmp_path)) == [".a.json.living00", "a.json"]
    write_json(tmp_path / "a.json", {"x": 2})
    assert os.listdir(tmp_path) == ["a.json"]


def test_what_a_killed_run_left_in_its_directory_goes(tmp_path):
    for name in (".result.json.aaaaaaaa", ".status.json.12", "status.json", "lock", ".mine"):
        (tmp_path / name).touch()
    (tmp_path / ".checkpoints.gone").mkdir()
    tidy(tmp_path)
    assert os.listdir(tmp_path) == [".mine"]


def test_a_claim_is_there_with_what_it_says_or_not_at_all(tmp_path, monkeypatch):
    def crash(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", crash)
        with pytest.raises(KeyboardInterrupt):
            Claim.make(tmp_path)
    assert os.listdir(tmp_path) == []
    with Claim.make(tmp_path):
        assert owner_of(tmp_path)["process"] == os.getpid()
    [file] = tmp_path.iterdir()
    assert json.loads(file.read_text())["released"] is True


def test_what_a_library_says_of_the_disk_in_words_is_understood():
    assert disk_trouble(RuntimeError("I/O error: No space left on device (os error 28)")).errno == 28
    assert disk_trouble(RuntimeError("header too large")) is None


def test_sealing_keeps_what_is_said():
    value = {"a": 0.1 + 0.2, "b": "ü", "c": None}
    assert unsealed(json.loads(json.dumps(sealed(value))), "x") == value
