"""Aioli inside Hugging Face's Trainer, unmodified: python examples/huggingface_trainer.py

The groups are text that comes with Python, the model a small LLaMA; put yours in their place. Only the lines marked (*)
are aioli's. Run it again with a directory, and it goes on from the last checkpoint there to the same weights.
"""

import sys
import tempfile
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

import aioli
from aioli.adapters.huggingface import AioliCallback
from aioli.data import local_corpus, prepare

STEPS = 96
place = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
sources = [{"group": name, "files": str(path)} for name, path in local_corpus(0.5).items()]
recipe = {"sources": sources, "tokenizer": {"train": {"vocab_size": 512}}, "context": 64, "cut": 5000}
store = prepare(recipe, place / "store")

shape = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
set_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=64, **shape))
args = TrainingArguments(
    str(place / "out"),
    max_steps=STEPS,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    dataloader_num_workers=2,
    learning_rate=3e-3,
    logging_steps=20,
    save_steps=50,
    report_to=[],
)
trainer = Trainer(model=model, args=args)
groups, target = ["python", "headers"], "stubs"  # train on these, towards that
policy = aioli.create("aioli-ood", rounds=4, k=2).policy(groups=groups, steps=STEPS, targets=[target])  # (*)
AioliCallback(policy, store).attach(trainer)  # (*)
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output_dir))
print("last mixture:", {name: round(share, 3) for name, share in zip(policy.groups, policy.report()["p"], strict=True)})
print(f"aioli report {args.output_dir} -o report.html  # shows it")
