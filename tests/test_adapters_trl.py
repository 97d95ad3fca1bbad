"""Aioli in TRL's SFTTrainer: instruction tasks are mixed as asked for, with loss on the answers, exactly resumable."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from tiny import word_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, set_seed

import aioli
from aioli.adapters.huggingface import AioliCallback
from aioli.data import Indices, MixtureSampler

trl = pytest.importorskip("trl", reason="trl needs Python 3.11")
TASKS = ("sum", "sort", "name")
STEPS, BATCH = 24, 4
SIZES = {"sum": 20, "sort": 12, "name": 8}


def tasks(seed):
    """Prompts that begin with the name of their task; answers are two words that no prompt has."""
    rng = np.random.default_rng(seed)
    names = rng.permutation(np.repeat(TASKS, list(SIZES.values()))).tolist()
    prompts = [" ".join([name, *(f"p{i}" for i in rng.integers(0, 9, rng.integers(1, 6)))]) + " " for name in names]
    answers = [" ".join(f"a{i}" for i in rng.integers(0, 9, 2)) for _ in names]
    return Dataset.from_dict({"task": names, "prompt": prompts, "completion": answers})


WORDS = ["<end>", *TASKS, *(f"{k}{i}" for k in "pa" for i in range(9))]


def trained(place, callbacks=(), resume=None, **more):
    set_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, max_position_embeddings=16, attention_dropout=0.1, **shape))
    seen = []

    def note(module, given, named):
        if module.training:
            seen.append((named["input_ids"].tolist(), named["labels"].tolist()))

    model.register_forward_pre_hook(note, with_kwargs=True)
    args = trl.SFTConfig(
        str(place),
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-2,
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        **{"save_strategy": "no", **more},
    )
    trainer = trl.SFTTrainer(
        model,
        args,
        train_dataset=tasks(0),
        eval_dataset=tasks(1),
        processing_class=word_tokenizer(WORDS),
        callbacks=list(callbacks),
    )
    policy = aioli.create("aioli", rounds=2, k=1, eta=1.0).policy(groups=list(TASKS), steps=STEPS)
    AioliCallback(policy, "task", sequences=4).attach(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, seen


def asked_for(place):
    lines = [json.loads(line) for line in (place / "journal.jsonl").read_text().splitlines()]
    return [
        line["proportions"] for line in lines if line["kind"] == "segment" for _ in range(line["begin"], line["end"])
    ]


@pytest.mark.parametrize("more", [{}, {"dataloader_num_workers": 2, "gradient_accumulation_steps": 2}])
def test_tasks_are_mixed_as_the_policy_asks_with_loss_on_answers(tmp_path, more):
    trainer, seen = trained(tmp_path, **more)
    each = more.get("gradient_accumulation_steps", 1)
    sampler = MixtureSampler(Indices(tuple(SIZES.values()), TASKS), BATCH, seed=trainer.args.seed)
    wanted = [sampler.next(p).group.tolist() for p in asked_for(tmp_path) for _ in range(each)]
    assert [[row[0] - 1 for row in ids] for ids, _ in seen] == wanted
    assert len({tuple(p) for p in asked_for(tmp_path)}) > 3
    for ids, labels in seen:
        for row, wished in zip(ids, labels, strict=True):
            answer = [token for token in wished if token != -100]
            assert len(answer) == 3  # two words and the end
            assert min(answer[:2]) >= 13
            assert answer == [token for token in row if token >= 13] + [0]


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_save = control.should_training_stop = state.global_step == 9


def test_a_resumed_run_equals_one_that_was_never_interrupted(tmp_path):
    whole, seen = trained(tmp_path / "whole")
    trained(tmp_path / "parts", [Stop()])
    resumed, rest = trained(tmp_path / "parts", resume=True)
    assert rest == seen[9:]
    for (name, one), two in zip(whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(one, two), name


def test_mixtures_are_logged_beside_what_the_trainer_logs(tmp_path):
    trainer, _ = trained(tmp_path)
    lines = [line for line in trainer.state.log_history if "loss" in line]
    assert len(lines) == STEPS
    assert all({"proportions/sum", "val_loss/sort", "entropy", "mean_token_accuracy"} <= line.keys() for line in lines)


def test_packing_is_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"no column 'task'.*packing drops it: set packing=False"):
        trained(tmp_path, packing=True, max_length=16)
