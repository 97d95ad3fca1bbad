"""A store on disk: opened with its sizes and checksums, refused by file where it is damaged, written whole or not."""

import numpy as np
import pytest
from test_sampler import reading, store

from aioli.data import MixtureSampler, TokenStore, write_store

__all__ = ["reading", "store"]


def test_a_store_is_opened_with_its_sizes_and_checksums(store):
    opened = TokenStore(store.path, verify=True)
    assert opened.groups == ("code", "web", "tiny")
    np.testing.assert_array_equal(opened.sequences(), [250, 100, 5])
    assert opened.rows("web").shape == (100, 16)  # the short tail is left out
    assert opened.fingerprint == store.fingerprint
    assert opened.dtype is np.uint16


def test_masks_come_with_their_batches(tmp_path, reading):
    tokens = {"plain": np.arange(64) % 9, "tasks": np.arange(64) % 7}
    mask = {"train": {"tasks": (np.arange(64) % 2).astype(np.uint8)}}
    made = write_store(tmp_path / "s", {"train": tokens}, context=8, vocabulary=9, masks=mask)
    batch = MixtureSampler(TokenStore(made.path, verify=True), 8).next([0.5, 0.5])
    assert (batch.mask[batch.group == 0] == 1).all()
    assert (batch.mask[batch.group == 1] == np.arange(8) % 2).all()


def test_a_large_vocabulary_takes_four_bytes(tmp_path):
    made = write_store(tmp_path / "s", {"train": {"a": np.array([70_000] * 8)}}, context=4, vocabulary=100_000)
    assert made.dtype is np.uint32
    assert made.rows("a")[0, 0] == 70_000


def damaged(tmp_path, how):
    made = write_store(tmp_path / "s", {"train": {"a": np.arange(64), "b": np.arange(32)}}, context=8, vocabulary=99)
    how(made.path)
    return made.path


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda path: (path / "manifest.json").unlink(), "not a token store"),
        (lambda path: (path / "manifest.json").write_text("{"), "cannot be read"),
        (lambda path: (path / "manifest.json").write_text("[]"), "cannot be read"),
        (lambda path: (path / "manifest.json").write_text('{"schema": 2}'), "manifest"),
        (lambda path: (path / "train.1.tokens.bin").unlink(), "train.1.tokens.bin is missing"),
        (lambda path: (path / "train.0.tokens.bin").write_bytes(b"xx"), "has 2 bytes, not 128"),
        (lambda path: (path / "train.0.tokens.bin").write_bytes(b"x" * 128), "does not match its checksum"),
    ],
)
def test_a_damaged_store_is_refused_by_file(tmp_path, how, words):
    path = damaged(tmp_path, how)
    with pytest.raises(ValueError, match=words):
        TokenStore(path, verify=True)


def test_writing_is_all_or_nothing(tmp_path):
    write_store(tmp_path / "s", {"train": {"a": np.arange(64)}}, context=8, vocabulary=99)
    with pytest.raises(ValueError, match="exists already"):
        write_store(tmp_path / "s", {"train": {"a": np.arange(64)}}, context=8, vocabulary=99)
    for splits, words in (
        ({"train": {"a": np.arange(9)}, "val": {}}, "split 'val' with groups"),
        ({"../train": {"a": np.arange(9)}}, "splits are train, val, test"),
        ({"train": {"a": np.array([1, 99])}}, "go from 1 to 99; vocabulary=99"),
        ({"train": {"a": np.array([-1, 9])}}, "go from -1 to 9"),
        ({"train": {"a": np.array([1.5])}}, "whole numbers, not float64"),
    ):
        with pytest.raises(ValueError, match=words):
            write_store(tmp_path / "t", splits, context=8, vocabulary=99)
    with pytest.raises(ValueError, match="one entry for each of its tokens"):
        write_store(tmp_path / "t", {"train": {"a": np.arange(9)}}, 8, 99, masks={"train": {"a": np.ones(3)}})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s"]


def test_a_group_that_is_not_there_is_named_with_those_that_are(store):
    with pytest.raises(ValueError, match=f"has no group 'nobody'; it has {', '.join(store.groups)}"):
        TokenStore(store.path).rows("nobody", "val")
