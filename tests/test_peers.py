"""The benchmark that stands beside its peers counts rightly, and its DoGE and DoReMi are those of the papers."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from contest import BARE, CONTESTANTS, by_hand, measuring
from contest.contender import Contender, FailedError
from contest.job import Job, load, marks, sequences, write_tokens
from contest.page import page
from contest.turns import Turns
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Three steps of a model of one layer."""
    found = Job(str(tmp_path_factory.mktemp("job")), steps=3, pieces=1, batch=6, context=8)
    write_tokens(found)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    for place in (found.model, found.reference):
        LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=8, **sizes)).save_pretrained(place)
    return found


# ---------------------------------------------------------------------- DoGE and DoReMi by hand


def test_doge_by_hand_is_its_closed_form():
    """With l_j(θ) = ½|θ - c_j|², gradients are θ - c_j: weights and step can be written down."""
    theta, centres = torch.tensor([1.0, 2.0]), torch.tensor([[0.0, 0.0], [1.0, 1.0], [4.0, 2.0]])
    p0 = torch.tensor([0.5, 0.3, 0.2])
    gradients = theta - centres
    p, direction = by_hand.doge_step(gradients, p0)
    total = [3 * 1.0 - 5.0, 3 * 2.0 - 3.0]  # Σ_i (θ - c_i)
    raw = [
        float(p0[j]) * math.exp(by_hand.ETA * sum(float(gradients[j, k]) * total[k] for k in range(2)))
        for j in range(3)
    ]
    assert p.tolist() == pytest.approx([x / sum(raw) for x in raw])
    assert direction.tolist() == pytest.approx((theta - p @ centres).tolist())
    towards, _ = by_hand.doge_step(gradients, p0, target=gradients[0])
    assert towards[0] / p0[0] == max(towards / p0)  # the group that is the target's own gains most


def test_gradients_of_groups_add_up_to_that_of_the_batch(job):
    model = by_hand.first_model(job)
    parameters, batch = list(model.parameters()), next(by_hand.drawn(job))
    each = torch.stack([by_hand.gradient(model, parameters, ids) for ids in batch])
    whole = by_hand.gradient(model, parameters, torch.cat(batch))
    torch.testing.assert_close(each.mean(0), whole)


def test_doremi_by_hand_is_its_closed_form():
    losses, reference = torch.tensor([[3.0, 1.0], [2.0, 2.0]]), torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert by_hand.excess(losses, reference).item() == pytest.approx((2 + 0 + 0 + 1) / 4)
    p = by_hand.reweighted(torch.tensor([0.25, 0.75]), torch.tensor([10.0, 0.0]), smoothing=0.1)
    raw = [0.25 * math.exp(10 * by_hand.ETA), 0.75]
    assert p.tolist() == pytest.approx([0.9 * x / sum(raw) + 0.05 for x in raw])


@pytest.mark.parametrize(("batch", "groups"), [(16, 3), (6, 3), (5, 7)])
def test_even_batches_are_within_a_sequence_of_even(batch, groups):
    counts = np.array([by_hand.even_counts(batch, groups, step) for step in range(50)])
    assert (counts.sum(1) == batch).all()
    asked = np.outer(np.arange(1, 51), np.full(groups, batch / groups))
    assert np.abs(counts.cumsum(0) - asked).max() < 1


@pytest.mark.parametrize("name", ["plain", "doge-by-hand", "doge-val-by-hand", "doremi-by-hand"])
def test_loops_train_on_what_they_say(job, name, tmp_path):
    contestant, turns = CONTESTANTS[name], Turns(job)
    contestant.function()(job, turns, place=tmp_path, **contestant.settings)
    turns.save(tmp_path / "record.npz")
    record = np.load(tmp_path / "record.npz")
    assert record["consumed"].shape == (3, 6, 2)
    assert (
        measuring.largest_deviation(record["consumed"], record["asked"]) == 0
    )  # two of each, held-out ones not counted
    first = torch.cat([p.detach().flatten() for p in by_hand.first_model(job).parameters()]).numpy()
    assert not np.array_equal(first, record["weights"])


# ---------------------------------------------------------------------- counting


def test_sequences_say_where_they_come_from():
    job = Job("unused", context=8)
    trained, held_out = sequences(job, 1, False, 700), sequences(job, 1, True, 4)
    found = marks(np.concatenate([trained, held_out]).astype(np.int64), 3)
    assert np.array_equal(found, np.stack([np.ones(700), np.arange(700)], axis=1))


def test_a_job_is_the_same_after_saving(tmp_path):
    job = Job(str(tmp_path), steps=7)
    assert load(job.save()) == job


def batches(*groups):
    """Steps, each as the groups of its sequences."""
    rows = iter(range(1000))
    return np.array([[(group, next(rows)) for group in step] for step in groups])


def test_deviation_is_the_largest_on_the_way():
    even = np.full((3, 2), 0.5)
    assert measuring.largest_deviation(batches([0, 1], [1, 0], [0, 1]), even) == 0
    assert measuring.largest_deviation(batches([0, 0], [0, 0], [1, 1]), even) == 2
    changing = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    assert measuring.largest_deviation(batches([0, 0], [1, 1], [0, 1]), changing) == 0


def test_stale_sequences_are_those_of_the_old_group_after_the_change():
    found = measuring.stale(batches([0, 0], [0, 0], [0, 1], [1, 1]), switch=1)
    assert found == {"after": 3, "batches": 2, "sequences": 3, "repeated": 0}
    twice = np.concatenate([batches([0, 0]), batches([0, 0])])
    assert measuring.stale(twice, switch=2)["repeated"] == 2


def test_a_resumed_run_is_compared_with_the_end_of_a_whole_one():
    whole = {"consumed": batches([0, 1], [1, 0], [0, 0]), "weights": np.ones(4)}
    same = {"consumed": whole["consumed"][1:], "weights": np.ones(4)}
    assert measuring.resumed(whole, same) == {"left": 2, "same_batches": 2, "weights_apart": 0.0, "exact": True}
    other = {"consumed": whole["consumed"][:2], "weights": np.full(4, 1.5)}
    assert measuring.resumed(whole, other) == {"left": 2, "same_batches": 0, "weights_apart": 0.5, "exact": False}


def test_a_disturbed_run_does_not_change_the_ratio():
    loops = [[[1.0, 1.0]] * 3, [[1.0, 1.0]] * 3]
    found = measuring.relative([[2.0, 1.0], [2.0, 1.0], [9.0, 9.0]], loops)
    assert found == {"ratio": 1.5, "least": 1.5, "most": 9.0}


# ---------------------------------------------------------------------- contestants and the page


def test_a_contestant_without_its_package_is_said_to_lack_it(job, tmp_path):
    if importlib.util.find_spec("fms_acceleration"):
        pytest.skip("it is installed here")
    contender = Contender("odm-loss", sys.executable, job.save(), tmp_path)
    with pytest.raises(FailedError, match="No module named 'fms_acceleration'"):
        contender.answer()
    contender.close()


def test_every_contestant_has_a_bare_loop_beside_it():
    assert {c.environment for c in CONTESTANTS.values()} == set(BARE)
    for environment, loops in BARE.items():
        assert {(CONTESTANTS[loop].environment, CONTESTANTS[loop].place) for loop in loops} == {
            (environment, "by_hand:plain")
        }


def test_what_is_published_has_everyone_and_every_measure():
    found = json.loads((ROOT / "results" / "peers.json").read_text(encoding="utf-8"))["contestants"]
    assert list(found) == list(CONTESTANTS)
    for name, contestant in CONTESTANTS.items():
        assert {"wall", "cpu", "ms_per_step", "peak_mb", "deviation"} <= found[name].keys(), name
        assert ("exact" in found[name].get("resume", ())) == contestant.resumes, name
        assert [each["workers"] for each in found[name].get("switch", ())] == list(contestant.switches), name
        assert all("sequences" in each for each in found[name].get("switch", ())), name
    assert len({each["first_loss"] for each in found.values()}) == 1  # everyone begins with the same model


def test_the_page_says_who_failed_and_why():
    found = json.loads((ROOT / "results" / "peers.json").read_text(encoding="utf-8"))
    found["contestants"]["odm-loss"] = {"title": "a peer", "environment": "bench", "failed": "it is not installed"}
    assert "- a peer: it is not installed" in page(found)
