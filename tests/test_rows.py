"""Files mapped side by side are read as one array, for any size of rows and any number of files."""

import copy
import gc
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioli.data import write_store
from aioli.data.rows import Rows, SideBySide


@settings(max_examples=40)
@given(
    st.integers(1, 700), st.lists(st.integers(0, 60), min_size=1, max_size=9), st.sampled_from([np.uint16, np.uint32])
)
def test_every_row_of_every_file_is_where_it_should_be(tmp_path_factory, context, sizes, dtype):
    place = tmp_path_factory.mktemp("rows")
    rng, arrays = np.random.default_rng(0), []
    for k, size in enumerate(sizes):
        tokens = rng.integers(0, 60_000, size * context + (k % 3 if context > 3 else 0)).astype(dtype)  # a short tail
        tokens.tofile(place / str(k))
        arrays.append(tokens[: size * context].reshape(-1, context))
    files = [place / str(k) if k % 4 < 3 else None for k in range(len(sizes))]
    found = SideBySide(files, dtype, context)
    for k, file in enumerate(files):
        if file is not None and len(arrays[k]):
            np.testing.assert_array_equal(found.rows[found.first[k] : found.first[k] + len(arrays[k])], arrays[k])
    with pytest.raises(ValueError, match="read-only"):
        found.rows[0] = 0


def test_maps_are_opened_again_elsewhere_and_given_back(tmp_path):
    tokens = {name: np.arange(640) + j for j, name in enumerate("abc")}
    store = write_store(tmp_path / "s", {"train": tokens}, 64, 700)

    def ids(rows):
        group, positions = np.array([2, 0, 1]), np.array([9, 0, 5])
        return rows.read(group, positions, rows.index(group, positions))[0][:, 0]

    rows = Rows(store, "train", "abc")
    for other in (rows, copy.copy(rows), pickle.loads(pickle.dumps(rows))):
        np.testing.assert_array_equal(ids(other), [578, 0, 321])
    for _ in range(200):
        Rows(store, "train", "cab")
    gc.collect()
    with open("/proc/self/maps") as maps:
        assert sum(str(tmp_path) in line for line in maps) <= 12
