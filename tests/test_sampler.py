"""Batches follow the mixture exactly, change with it at once, and resume to the bit."""

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aioli.data import Indices, MixtureSampler, write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(0)
    tokens = {g: rng.integers(0, 500, size) for g, size in (("code", 4000), ("web", 1603), ("tiny", 90))}
    splits = {"train": tokens, "val": {g: t[:160] for g, t in tokens.items()}}
    return write_store(tmp_path_factory.mktemp("data") / "store", splits, context=16, vocabulary=512)


def stream(sampler, path):
    return [sampler.next(p) for p in path]


def same(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        for mine, yours in zip(x, y, strict=True):
            if mine is not None:
                np.testing.assert_array_equal(mine, yours)


def a_path(steps, seed=0):
    rng = np.random.default_rng(seed)
    path = []
    while len(path) < steps:
        path += [rng.dirichlet(np.ones(3))] * int(rng.integers(1, 9))
    return path[:steps]


@pytest.fixture(params=["many at once", "one by one"])
def reading(request, monkeypatch):
    """Short sequences are read many batches at once, long ones batch by batch: both ways, for short ones too."""
    monkeypatch.setattr("aioli.data.sampler._READ_TOKENS", 0 if request.param == "one by one" else 10**9)


def test_batches_hold_the_tokens_of_their_sequences(store, reading):
    sampler = MixtureSampler(store, 8)
    for batch in stream(sampler, a_path(60)):
        assert batch.ids.shape == (8, 16)
        assert batch.ids.dtype == np.int64
        for row, group, position in zip(batch.ids, batch.group, batch.positions, strict=True):
            np.testing.assert_array_equal(row, store.rows(int(group))[position])


def test_no_sequence_is_repeated_before_its_epoch_ends(store):
    sampler = MixtureSampler(store, 7)
    seen = [[] for _ in range(3)]
    for batch in stream(sampler, a_path(300)):
        for group, position in zip(batch.group, batch.positions, strict=True):
            seen[group].append(int(position))
    for j, size in enumerate(sampler.sizes):
        for epoch in range(len(seen[j]) // size):
            assert sorted(seen[j][epoch * size : (epoch + 1) * size]) == list(range(size))
        assert len(seen[j]) == sampler.drawn[j]
    np.testing.assert_allclose(sampler.epochs, sampler.drawn / sampler.sizes)
    assert sampler.repeated[2] == sampler.drawn[2] - sampler.sizes[2]


@settings(max_examples=25)
@given(st.integers(0, 80), st.integers(0, 5), st.sampled_from([1, 3, 64]), st.sampled_from([1, 5, 64]))
def test_the_stream_after_loading_equals_the_uninterrupted_one(cut, seed, ahead, later):
    indices, path = Indices((40, 17, 3)), a_path(80, seed)
    whole = stream(MixtureSampler(indices, 6, seed), path)
    first = MixtureSampler(indices, 6, seed, ahead=ahead)
    stream(first, path[:cut])
    state = json.loads(json.dumps(first.state_dict(), allow_nan=False))
    second = MixtureSampler(indices, 6, seed, ahead=later)
    second.load_state_dict(state)
    same(stream(second, path[cut:]), whole[cut:])


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_ranks_share_one_global_batch(store, world, reading):
    path = a_path(50)
    whole = stream(MixtureSampler(store, 16), path)
    slices = [stream(MixtureSampler(store, 16, rank=rank, world=world), path) for rank in range(world)]
    for t, batch in enumerate(whole):
        for rank in range(world):
            same([slices[rank][t]], [type(batch)(*(None if v is None else v[rank::world] for v in batch))])


def test_a_new_mixture_is_in_force_from_the_next_batch(store):
    """A thousand changes, under read-ahead: never a stale batch. Also where the caller changes p in place."""
    sampler = MixtureSampler(store, 4, ahead=256)
    rng = np.random.default_rng(0)
    p = np.zeros(3)
    for _ in range(1000):
        p[:] = 0.0
        p[rng.integers(3)] = 1.0
        assert (sampler.next(p).group == np.argmax(p)).all()


def test_a_group_with_no_share_is_never_drawn_and_does_not_stop_the_others(store):
    sampler = MixtureSampler(store, 5)
    assert all((b.group != 1).all() for b in stream(sampler, [[0.5, 0.0, 0.5]] * 200))


@pytest.mark.parametrize("ahead", [1, 7, 64])
def test_cap_redistributes_says_so_once_and_resumes(ahead):
    indices = Indices((100, 100, 6))
    p = np.array([0.5, 0.3, 0.2])

    def run(cut):
        sampler = MixtureSampler(indices, 10, on_exhausted="cap", max_epochs={"2": 2.0}, ahead=ahead)
        found = []
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for step in range(60):
                if step == cut:
                    state = json.loads(json.dumps(sampler.state_dict()))
                    again = MixtureSampler(indices, 10, on_exhausted="cap", max_epochs={"2": 2.0}, ahead=3)
                    again.load_state_dict(state)
                    sampler = again
                found.append(sampler.next(p))
        return sampler, found, told

    sampler, whole, told = run(None)
    assert len(told) == 1
    assert "group '2' is used up after 2 epochs" in str(told[0].message)
    assert sampler.drawn[2] == 12
    assert all(len(b.group) == 10 for b in whole)
    np.testing.assert_allclose(sampler.drawn[:2] / sampler.drawn[:2].sum(), [0.625, 0.375], atol=0.02)
    np.testing.assert_allclose(sampler.realised, sampler.drawn / 600)
    for cut in (1, 5, 6, 7, 30):
        same(run(cut)[1], whole)


def test_error_and_everything_used_up_are_named():
    sampler = MixtureSampler(Indices((5, 5)), 4, on_exhausted="error")
    with pytest.raises(ValueError, match="group '0' is used up"):
        stream(sampler, [[1.0, 0.0]] * 3)
    sampler = MixtureSampler(Indices((5, 5)), 4, on_exhausted="cap")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stream(sampler, [[0.5, 0.5]] * 2)
        with pytest.raises(ValueError, match="is used up"):
            sampler.next([0.5, 0.5])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MixtureSampler(Indices((5,)), 0), "batch=0"),
        (lambda: MixtureSampler(Indices((5,)), 4, rank=2, world=2), "rank=2 of world=2"),
        (lambda: MixtureSampler(Indices((5,)), 5, world=2), "equal share of a batch of 5"),
        (lambda: MixtureSampler(Indices((5,)), 4, on_exhausted="stop"), "on_exhausted='stop'"),
        (lambda: MixtureSampler(Indices((5,)), 4, max_epochs=2), "needs on_exhausted"),
        (lambda: MixtureSampler(Indices((5,)), 4, on_exhausted="cap", max_epochs={"x": 1}), "names 'x'"),
        (lambda: MixtureSampler(Indices((5,)), 4, on_exhausted="cap", max_epochs=-1.0), "must be positive"),
        (lambda: MixtureSampler(Indices((5,)), 4, on_exhausted="cap", max_epochs=0), "must be positive"),
        (lambda: MixtureSampler(Indices((5, 5)), 4).next([0.5, 0.6]), "sum to 1.1"),
        (lambda: MixtureSampler(Indices((5, 0)), 4).next([0.5, 0.5]), "'1' has no whole sequence"),
        (lambda: MixtureSampler(Indices((5, 5)), 4).next([1.0]), "2 groups"),
    ],
)
def test_bad_input_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


BROKEN = {
    "drawn": [[-5, 9], [1.7, 2.3], [1], None],
    "owed": [[float("nan"), 0.0], [1e6, -1e6]],
    "p": [[5.0, -4.0], [0.5]],
    "batches": [-7, 3, "x"],
    "wish": ["00", "zz"],
    "base": [[100, -100], [9, 9]],
    "told": [[7]],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BROKEN.items() for value in values])
def test_a_state_that_cannot_be_one_is_refused_and_changes_nothing(name, value):
    sampler = MixtureSampler(Indices((5, 5)), 4)
    sampler.next([0.5, 0.5])
    state = sampler.state_dict()
    with pytest.raises(ValueError, match="not the state of a sampler"):
        sampler.load_state_dict({**state, name: value})
    assert sampler.state_dict() == state
    for nothing in ({}, None, []):
        with pytest.raises(ValueError, match=r"this is not the state|this state was saved with"):
            sampler.load_state_dict(nothing)


def test_a_lower_limit_after_resuming_takes_the_group_out():
    first = MixtureSampler(Indices((50, 6)), 4, on_exhausted="cap", max_epochs=3.0)
    stream(first, [[0.5, 0.5]] * 6)
    later = MixtureSampler(Indices((50, 6)), 4, on_exhausted="cap", max_epochs=1.0)
    with pytest.warns(UserWarning, match="group '1' is used up"):
        later.load_state_dict(first.state_dict())
    assert (later.next([0.5, 0.5]).group == 0).all()


def test_a_huge_batch_does_not_plan_gigabytes():
    sampler = MixtureSampler(Indices((10**6, 10**6)), 1 << 16)
    sampler.next([0.5, 0.5])
    assert sum(len(p.group) for p in sampler.plan([0.5, 0.5], 3)) == 3
    assert sampler.ahead * sampler.batch <= 1 << 18


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Indices((-5, 50)), "not negative"),
        (lambda: Indices(()), "at least one"),
    ],
)
def test_impossible_sizes_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        MixtureSampler(make(), 4)


def test_numbers_of_numpy_are_numbers():
    sampler = MixtureSampler(Indices((5, 5)), np.int64(4), seed=np.int64(1))
    json.dumps(sampler.state_dict())
    assert MixtureSampler(Indices((100,)), 4, on_exhausted="cap", max_epochs=0.29)._schedule.limits[0] == 29
    assert MixtureSampler(Indices((5,)), 4, on_exhausted="cap", max_epochs=float("inf"))._schedule.limits[0] == -1


def test_a_state_of_another_split_or_store_is_refused(store, tmp_path):
    state = MixtureSampler(store, 4).state_dict()
    with pytest.raises(ValueError, match="split=train, not val"):
        MixtureSampler(store, 4, split="val").load_state_dict({**state, "sizes": [10, 10, 5]})
    other = {group: store.rows(group).ravel()[::-1].astype(int) for group in store.groups}
    made = write_store(tmp_path / "s", {"train": other}, context=16, vocabulary=512)
    with pytest.raises(ValueError, match="saved with data="):
        MixtureSampler(made, 4).load_state_dict(state)


def test_a_state_of_other_data_is_refused():
    state = MixtureSampler(Indices((5, 5)), 4).state_dict()
    with pytest.raises(ValueError, match="sizes="):
        MixtureSampler(Indices((5, 6)), 4).load_state_dict(state)
    with pytest.raises(ValueError, match="seed="):
        MixtureSampler(Indices((5, 5)), 4, seed=1).load_state_dict(state)


# ---------------------------------------------------------------- other ways to draw


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_segments_read_ahead_in_a_thread_but_not_beyond_and_can_be_left(store, prefetch):
    path = a_path(60)
    whole = stream(MixtureSampler(store, 8), path)
    sampler, found, at = MixtureSampler(store, 8), [], 0
    for n in (1, 7, 20, 5, 27):
        p = path[at]
        taken = list(zip(sampler.segment(p, n, prefetch), range(n), strict=True))
        found += [batch for batch, _ in taken]
        at += n
    reference = MixtureSampler(store, 8)
    wanted = [reference.next(path[b]) for b, n in ((0, 1), (1, 7), (8, 20), (28, 5), (33, 27)) for _ in range(n)]
    same(found, wanted)
    assert len(whole) == len(found)
    left = MixtureSampler(store, 8)
    for batch, _ in zip(left.segment(path[0], 50, prefetch), range(10), strict=False):
        same([batch], [batch])
    again = MixtureSampler(store, 8)
    again.load_state_dict(json.loads(json.dumps(left.state_dict())))
    assert int(again.drawn.sum()) in (80, 88)  # zip takes one more than it gives
    same([again.next(path[0])], [left.next(path[0])])


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 70)), max_size=6), st.integers(0, 3))
def test_skipping_is_drawing_without_reading(parts, seed):
    indices, path = Indices((40, 17, 3)), a_path(10, seed)
    drawn, skipped = MixtureSampler(indices, 6, seed), MixtureSampler(indices, 6, seed)
    for which, n in parts:
        stream(drawn, [path[which]] * n)
        skipped.skip(path[which], n)
    np.testing.assert_array_equal(drawn.drawn, skipped.drawn)
    same([drawn.next(path[0])], [skipped.next(path[0])])
    other = MixtureSampler(indices, 6, seed)
    blocks = list(other.plan(path[1], 100))
    reference = stream(MixtureSampler(indices, 6, seed), [path[1]] * 100)
    np.testing.assert_array_equal(
        np.concatenate([block.positions for block in blocks]), [b.positions for b in reference]
    )


def test_some_groups_can_be_chosen(store):
    sampler = MixtureSampler(store, 8, groups=("tiny", "code"))
    batch = sampler.next([0.5, 0.5])
    np.testing.assert_array_equal(batch.ids[0], store.rows("tiny")[batch.positions[0]])
    np.testing.assert_array_equal(batch.ids[-1], store.rows("code")[batch.positions[-1]])
    with pytest.raises(ValueError, match="has no group 'books'; it has code, web, tiny"):
        MixtureSampler(store, 8, groups=("books",))
    with pytest.raises(ValueError, match="each named once"):
        MixtureSampler(store, 8, groups=("code", "code"))


def test_groups_without_a_sequence_are_left_out_unless_named(tmp_path):
    made = write_store(tmp_path / "s", {"train": {"a": np.arange(64), "target": np.arange(2)}}, 8, 99)
    assert MixtureSampler(made, 4).groups == ("a",)
    with pytest.raises(ValueError, match=r"'target' of .* has no whole sequence in its train split"):
        MixtureSampler(made, 4, groups=("a", "target"))


def test_looking_at_the_counts_does_not_change_the_stream(store):
    path = a_path(60)
    quiet, curious = MixtureSampler(store, 8), MixtureSampler(store, 8)
    for p in path:
        same([quiet.next(p)], [curious.next(p)])
        assert int(curious.drawn.sum()) % 8 == 0
        curious.state_dict()
        curious.owed()


def test_indices_may_have_names():
    assert MixtureSampler(Indices((5, 5)), 4).groups == ("0", "1")
    assert MixtureSampler(Indices((5, 5), ("code", "web")), 4).groups == ("code", "web")
    with pytest.raises(ValueError, match=r"groups=\['code'\] must be 2 names"):
        MixtureSampler(Indices((5, 5), ("code",)), 4)
