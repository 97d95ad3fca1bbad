"""Aioli inside Lightning's Trainer: python examples/lightning_trainer.py

The groups are text that comes with Python, the model a small LLaMA; put yours in their place. Only the lines marked (*)
are aioli's. Needs `pip install 'aioli-mix[lightning]'` and, for this model, transformers.
"""

import tempfile
from pathlib import Path

import lightning as L
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import aioli
from aioli.adapters.lightning import AioliCallback, MixtureDataModule
from aioli.data import local_corpus, prepare

STEPS = 96
place = Path(tempfile.mkdtemp())
sources = [{"group": name, "files": str(path)} for name, path in local_corpus(0.5).items()]
recipe = {"sources": sources, "tokenizer": {"train": {"vocab_size": 512}}, "context": 64, "cut": 5000}
store = prepare(recipe, place / "store")


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        shape = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=64, **shape))

    def loss(self, batch):
        return self.model(input_ids=batch["input_ids"], labels=batch["labels"]).loss

    def training_step(self, batch, index):
        return self.loss(batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


L.seed_everything(0)
groups, target = ["python", "headers"], "stubs"  # train on these, towards that
policy = aioli.create("aioli-ood", rounds=4, k=2).policy(groups=groups, steps=STEPS, targets=[target])  # (*)
data = MixtureDataModule(policy, store, batch=8, workers=2, journal=place)  # (*)
callback = AioliCallback(data, loss=Model.loss)  # (*)
trainer = L.Trainer(max_steps=STEPS, callbacks=[callback], default_root_dir=place, logger=False, accelerator="cpu")
trainer.fit(Model(), data)
print("last mixture:", {name: round(share, 3) for name, share in zip(policy.groups, policy.report()["p"], strict=True)})
print(f"aioli report {place} -o report.html  # shows it")
