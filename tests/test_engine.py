"""The engine is a plain training loop that observes: same bits, exact probes, exact resume."""

import itertools

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import aioli
from aioli.data import MixtureSampler, write_store
from aioli.files import read_json
from aioli.policies import looks
from aioli.protocol import Segment
from aioli.train import DivergedError, Engine, Run, Schedule, Settings, StoppedError, TrainRecipe, checkpoint, journal
from aioli.train.forward import directional
from aioli.train.models import build_model, preset_config
from aioli.train.optimizer import adamw
from aioli.train.presets import PRESETS
from aioli.train.probes import gradient_of, group_losses
from aioli.train.validation import budget, subset

VOCABULARY, CONTEXT, GROUPS = 97, 16, ("a", "b", "c")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Three groups with tokens and bigrams of their own, and a target, only looked at, that is like the second."""
    rng = np.random.default_rng(0)
    splits = {split: {} for split in ("train", "val", "test")}
    for j, group in enumerate((*GROUPS, "target")):
        first = 32 * (0, 1, 2, 1)[j]
        for split, size in (("train", 4000), ("val", 640), ("test", 640)):
            tokens = first + np.cumsum(rng.integers(1, 4, size)) % 32
            splits[split][group] = tokens[: 0 if split == "train" and group == "target" else size]
    return write_store(tmp_path_factory.mktemp("data") / "store", splits, CONTEXT, VOCABULARY)


def model_of(seed=0, **changes):
    config = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, **changes}
    return build_model("tiny", None, vocabulary=VOCABULARY, context=CONTEXT, seed=seed, overrides=config)


def engine_of(store, steps=20, batch=8, targets=GROUPS, model=None, **more):
    settings = Settings(Schedule(1e-2, steps, 3), accumulate=more.pop("accumulate", 1))
    sampler = MixtureSampler(store, batch, groups=GROUPS)
    validation = subset(store, targets, "val", 4, 0, 64)
    return Engine(model or model_of(), sampler, validation, settings, **more)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# ---------------------------------------------------------------------- training


def test_a_static_policy_gives_the_bits_of_a_plain_loop(store):
    engine = engine_of(store)
    aioli.drive(aioli.create("stratified").policy(groups=list(GROUPS), steps=20), engine)

    model, sampler, schedule = model_of(), MixtureSampler(store, 8, groups=GROUPS), Schedule(1e-2, 20, 3)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], betas=(0.9, 0.95)
    )
    for step in range(20):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step)
        ids = torch.from_numpy(sampler.next(np.ones(3) / 3).ids)
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(weights(engine.plain), weights(model))


def test_accumulating_in_parts_is_the_same_step(store):
    whole, parts = (engine_of(store, accumulate=k) for k in (1, 4))
    gradients = []
    for engine in (whole, parts):
        step = engine.optimizer.optimizer.step
        engine.optimizer.optimizer.step = lambda step=step, engine=engine: (
            gradients.append(torch.cat([p.grad.flatten() for p in engine.plain.parameters()])),
            step(),
        )
        engine.advance(Segment(np.ones(3) / 3, 1))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)
    assert whole.loss == pytest.approx(parts.loss, rel=1e-5)


def test_the_learning_rate_warms_up_and_falls_to_its_floor():
    schedule = Schedule(2.0, 100, 10, 0.1)
    rates = [schedule.rate(step) for step in range(101)]
    np.testing.assert_allclose(rates[:10], 0.2 * np.arange(1, 11))
    assert max(rates) == pytest.approx(2.0)
    assert rates[100] == pytest.approx(0.2)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


def test_decay_is_on_matrices_only():
    groups = adamw(model_of(), 1e-3, (0.9, 0.95), 1e-8, 0.1).param_groups
    assert all(p.ndim >= 2 for p in groups[0]["params"])
    assert all(p.ndim < 2 for p in groups[1]["params"])
    assert (groups[0]["weight_decay"], groups[1]["weight_decay"]) == (0.1, 0.0)


@pytest.mark.parametrize(
    ("preset", "millions"),
    [
        ("pythia-14m", 14.07),
        ("pythia-31m", 30.49),
        ("pythia-70m", 70.43),
        ("pythia-160m", 162.32),
        ("pythia-410m", 405.33),
        ("pythia-1b", 1011.78),
        ("pythia-1.4b", 1414.65),
    ],
)
def test_presets_have_the_published_sizes(preset, millions):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(preset_config(preset, 50277, 2048, {}))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)
    assert preset in PRESETS


# ---------------------------------------------------------------------- observations


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def random_batch(samples, groups, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (samples, CONTEXT), generator=generator)
    return ids, torch.randint(0, groups, (samples,), generator=generator)


@pytest.mark.parametrize("make", [model_of, llama])
def test_one_forward_mode_pass_equals_a_backward_pass_for_every_group(make):
    model, m, n = make(), 5, 3
    ids, group = random_batch(16, m)
    seen, target = random_batch(6, n, 1)
    direction = gradient_of(model, group_losses(model(input_ids=seen).logits, seen, target, n).sum())
    found = directional(model, direction, ids, ids, group, m)
    wanted = []
    for j in range(m):
        gradient = gradient_of(model, group_losses(model(input_ids=ids).logits, ids, group, m)[j])
        wanted.append(sum((gradient[name] * direction[name]).sum() for name in gradient))
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("weighting", ["sample", "loss"])
def test_grad_inner_of_a_segment_equals_explicit_gradients(store, weighting):
    val = MixtureSampler(store, 6, split="val", groups=GROUPS)
    model = model_of()
    first = MixtureSampler(store, 8, groups=GROUPS).next(np.ones(3) / 3)
    ids, group = torch.from_numpy(first.ids), torch.from_numpy(first.group)
    seen = val.copy().next(np.ones(3) / 3)
    seen_ids = torch.from_numpy(seen.ids)
    val_losses = group_losses(model(input_ids=seen_ids).logits, seen_ids, torch.from_numpy(seen.group), 3)
    direction = gradient_of(model, val_losses.sum())
    wanted = []
    for j in range(3):
        gradient = gradient_of(model, group_losses(model(input_ids=ids).logits, ids, group, 3)[j])
        wanted.append(float(sum((gradient[name] * direction[name]).sum() for name in gradient)))
    engine = engine_of(store, model=model, val_sampler=val)
    segment = Segment(np.ones(3) / 3, 1, frozenset({"grad_inner", "grad_norm"}), weighting=weighting)
    found = engine.advance(segment)
    np.testing.assert_allclose(found.grad_inner, wanted, rtol=1e-5)
    assert (found.grad_norm > 0).all()


def test_losses_by_group_come_from_the_batches_that_were_trained_on(store):
    engine = engine_of(store, reference=model_of(seed=1))
    model, reference = model_of(), model_of(seed=1)
    batch = MixtureSampler(store, 8, groups=GROUPS).next([0.5, 0.5, 0.0])
    ids, group = torch.from_numpy(batch.ids), torch.from_numpy(batch.group)
    with torch.no_grad():
        losses = group_losses(model(input_ids=ids).logits, ids, group, 3).numpy()
        expected = group_losses(reference(input_ids=ids).logits, ids, group, 3).numpy()
    kinds = frozenset({"train_loss", "excess_loss", "token_excess_loss", "lr"})
    found = engine.advance(Segment(np.array([0.5, 0.5, 0.0]), 1, kinds))
    np.testing.assert_allclose(found.train_loss[:2], losses[:2], rtol=1e-5)
    np.testing.assert_allclose(found.excess_loss[:2], (losses - expected)[:2], rtol=1e-3, atol=1e-5)
    assert (found.token_excess_loss[:2] >= np.maximum(found.excess_loss[:2], 0) - 1e-9).all()
    assert np.isnan(found.train_loss[2])
    np.testing.assert_array_equal(found.tokens, [64, 64, 0])
    assert found.lr == Schedule(1e-2, 20, 3).rate(0)


def test_loss_weighting_is_one_backward_of_the_weighted_losses(store):
    engine = engine_of(store)
    p = np.array([0.7, 0.2, 0.1])
    model, batch = model_of(), MixtureSampler(store, 8, groups=GROUPS).next(np.ones(3) / 3)
    ids, group = torch.from_numpy(batch.ids), torch.from_numpy(batch.group)
    loss = (torch.tensor(p, dtype=torch.float32) * group_losses(model(input_ids=ids).logits, ids, group, 3)).sum()
    engine.advance(Segment(p, 1, weighting="loss"))
    assert engine.loss == pytest.approx(float(loss.detach()), rel=1e-6)


def test_the_validation_budget_keeps_looking_within_five_percent(store):
    policy = aioli.create("aioli", rounds=4, k=2).policy(groups=list(GROUPS), steps=400)
    assert looks(policy) == 4 * (3 * 2 + 1)
    each = budget(looks(policy), 400, 8 * CONTEXT, CONTEXT, 3, 0.04)
    cost = looks(policy) * each * 3 * CONTEXT / 3  # a forward pass is a third of a step
    assert cost <= 0.05 * 400 * 8 * CONTEXT
    assert each == 1 or cost > 0.02 * 400 * 8 * CONTEXT


METHODS = {
    "stratified": {}, "aioli": {"rounds": 2, "k": 1}, "aioli-static": {"k": 1}, "aioli-diagonal": {"rounds": 2, "k": 1},
    "aioli-pooled": {"rounds": 2, "k": 1}, "aioli-fork": {"rounds": 4},
    "odm": {}, "ado": {}, "aioli+stratified": {"rounds": 2, "k": 1},
    "skill-it": {"graph": [[0.5, 0.1, 0.1], [0.0, 0.4, 0.2], [0.1, 0.1, 0.3]]}, "doge": {"proxy": True},
}  # fmt: skip


def recipe_of(store, **more):
    plain = {
        "data": {"store": str(store.path), "groups": list(GROUPS)},
        "model": {"preset": "tiny", "config": {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}},
        "train": {"steps": 60, "batch": 8, "lr": 1e-2},
        "checkpoint": {"every": 7},
    }
    for key, value in more.items():
        plain[key] = {**plain[key], **value} if isinstance(value, dict) and key in plain else value
    return TrainRecipe.model_validate(plain)


@pytest.mark.parametrize("method", METHODS)
def test_methods_run_end_to_end(method, store, tmp_path):
    chosen = {"name": method, "settings": METHODS[method]}
    result = Run(recipe_of(store, method=chosen), tmp_path / "run").train()
    assert result["steps"] == 60
    assert result["val"]["mean_loss"] < 4.4
    assert sum(result["realised"].values()) == pytest.approx(1)


@pytest.mark.parametrize(("eta", "clip"), [(1.0, "group"), (1.0, "token")])
def test_doremi_weights_the_group_that_lags_behind_its_reference(eta, clip, store, tmp_path):
    """The reference knows a and b; its proxy trains on all, so that it lags behind in those and not in c."""
    small = {"steps": 200}
    reference = Run(recipe_of(store, method="stratified", train=small, data={"groups": ["a", "b"]}), tmp_path / "ref")
    reference.train()
    chosen = {
        "name": "doremi",
        "settings": {"proxy": True, "eta": eta, "clip": clip},
        "reference": str(tmp_path / "ref"),
    }
    result = Run(recipe_of(store, method=chosen), tmp_path / "run").train()
    assert result["mean_proportions"]["c"] < 0.2
    assert result["realised"] == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, abs=0.01)  # loss-weighted


def test_doge_weights_the_group_whose_gradient_helps_the_target(store, tmp_path):
    chosen = {"name": "doge", "settings": {"proxy": True, "eta": 1.0}}
    found = {}
    for gradients in ("sum", "matrix"):
        recipe = recipe_of(store, method=chosen, data={"targets": ["target"]}, val={"gradients": gradients})
        found[gradients] = Run(recipe, tmp_path / gradients).train()["mean_proportions"]
    assert max(found["sum"], key=found["sum"].get) == "b"
    assert found["sum"] == pytest.approx(found["matrix"], rel=1e-4)


def test_out_of_domain_leans_towards_the_group_that_helps(store, tmp_path):
    chosen = {"name": "aioli-ood", "settings": {"rounds": 6, "k": 1, "eta": 2.0}}
    data = {"targets": ["target"]}
    result = Run(recipe_of(store, method=chosen, data=data, train={"steps": 240}), tmp_path / "run").train()
    assert max(result["realised"], key=result["realised"].get) == "b"


# ---------------------------------------------------------------------- interruptions


def journal_of(path):
    lines = [line for line, _ in journal.read(path / "journal.jsonl")]
    for line in lines:
        line.pop("seconds", None)
    return lines


@pytest.mark.parametrize("method", ["aioli", "ado", "odm", "doge"])
def test_a_run_that_was_stopped_anywhere_ends_with_the_same_bits(method, store, tmp_path):
    chosen = {"name": method, "settings": METHODS[method]}
    whole = Run(recipe_of(store, method=chosen), tmp_path / "whole")
    whole.train()
    for stop in (1, 5, 13, 30, 31, 59):

        def stopping(run, stop=stop):
            if run.engine.step >= stop:
                run.stop.set()

        with pytest.raises(StoppedError):
            Run(recipe_of(store, method=chosen), tmp_path / "run", stopping).train()
    last = Run(recipe_of(store, method=chosen), tmp_path / "run")
    last.train()
    assert torch.equal(weights(last.engine.plain), weights(whole.engine.plain))
    assert journal_of(tmp_path / "run") == journal_of(tmp_path / "whole")
    results = [read_json(tmp_path / name / "result.json") for name in ("run", "whole")]
    assert results[0].pop("seconds").keys() == results[1].pop("seconds").keys()
    assert results[0] == results[1]


def test_a_crash_between_checkpoints_costs_only_time(store, tmp_path):
    whole = Run(recipe_of(store), tmp_path / "whole")
    whole.train()

    class CrashError(Exception):
        pass

    def crash(run):
        if run.engine.step == 25:
            raise CrashError

    with pytest.raises(CrashError):
        Run(recipe_of(store), tmp_path / "run", crash).train()
    with (tmp_path / "run" / "journal.jsonl").open("a") as torn:
        torn.write('{"kind": "segm')  # a torn line
    last = Run(recipe_of(store), tmp_path / "run")
    last.train()
    assert torch.equal(weights(last.engine.plain), weights(whole.engine.plain))
    assert journal_of(tmp_path / "run") == journal_of(tmp_path / "whole")


def test_damaged_checkpoints_and_other_recipes_are_refused(store, tmp_path):
    def stop(run):
        run.stop.set()

    with pytest.raises(StoppedError):
        Run(recipe_of(store), tmp_path / "run", stop).train()
    with pytest.raises(ValueError, match="holds a run with another seed: 0, not 1"):
        Run(recipe_of(store, seed=1), tmp_path / "run").train()
    file = checkpoint.latest(tmp_path / "run") / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is missing or does not match its checksum"):
        Run(recipe_of(store), tmp_path / "run").train()


def test_a_loss_that_is_not_a_number_stops_with_step_and_group(store, tmp_path):
    run = Run(recipe_of(store, method="stratified", checkpoint={"every": 2}), tmp_path / "run")

    def poison(job):
        if job.engine.step == 4:
            with torch.no_grad():
                next(job.engine.plain.parameters()).fill_(float("nan"))

    run.report = poison
    said = r"step 4: the loss is nan in group a, b, c; the last good checkpoint is .*step-000000004; lower train\.lr"
    with pytest.raises(DivergedError, match=said):
        run.train()
    assert Run(recipe_of(store, method="stratified"), tmp_path / "run").train()["val"]["mean_loss"] < 4.4


# ---------------------------------------------------------------------- corners


@pytest.mark.parametrize("batch", [1, 2])
def test_batches_smaller_than_the_number_of_groups(batch, store, tmp_path):
    chosen = {"name": "aioli", "settings": {"rounds": 2, "k": 1}}
    result = Run(recipe_of(store, method=chosen, train={"batch": batch}), tmp_path / "run").train()
    assert result["steps"] == 60


def test_a_single_group_and_a_single_validation_sequence(store, tmp_path):
    plain = recipe_of(store, method="stratified", data={"groups": ["a"]}, val={"tokens": 1})
    run = Run(plain, tmp_path / "run")
    assert run.engine.validation.tokens == CONTEXT
    assert run.train()["realised"] == {"a": 1.0}


def test_prompts_carry_no_loss(tmp_path):
    tokens = {"t": np.arange(64) % 9}
    masks = {split: {"t": (np.arange(64) % 8 >= 5).astype(np.uint8)} for split in ("train", "val")}
    made = write_store(tmp_path / "s", {"train": tokens, "val": tokens}, 8, 9, masks=masks)
    model = build_model("tiny", None, vocabulary=9, context=8, seed=0)
    engine = Engine(model, MixtureSampler(made, 2), subset(made, ["t"], "val", None, 0, 8), Settings(Schedule(0.1, 5)))
    batch = MixtureSampler(made, 2).next([1.0])
    with torch.no_grad():
        logits = torch.log_softmax(model(input_ids=torch.from_numpy(batch.ids)).logits, -1)
    by_hand = [-float(logits[s, t - 1, batch.ids[s, t]]) for s in range(2) for t in (5, 6, 7)]
    engine.advance(Segment(np.ones(1), 1))
    assert engine.loss == pytest.approx(np.mean(by_hand), rel=1e-5)
