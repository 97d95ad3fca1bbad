"""Examples are packed whole, each once, and almost as tightly as can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioli.data.packing import pack


@given(st.integers(1, 200).flatmap(lambda c: st.tuples(st.lists(st.integers(1, c), max_size=200), st.just(c))))
def test_every_example_is_in_one_sequence_and_the_bound_of_best_fit_holds(case):
    lengths, context = case
    rows = pack(lengths, context)
    assert sorted(e for row in rows for e in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[e] for e in row) <= context for row in rows)
    least = max(-(-sum(lengths) // context), sum(length > context / 2 for length in lengths))
    assert len(rows) <= 11 / 9 * least + 1 or len(rows) <= 1.5 * least + 1


def test_real_lengths_leave_little_room():
    lengths = np.random.default_rng(0).integers(20, 200, 2000).tolist()
    assert len(pack(lengths, 512)) * 512 < 1.02 * sum(lengths)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="5 tokens does not fit into a sequence of 4"):
        pack([5], 4)
