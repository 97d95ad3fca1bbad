"""Aioli inside your own PyTorch loop, with a DataLoader of two workers: python examples/pytorch_loop.py

The model is a small transformer in plain torch; the groups are text that comes with Python. The two lines that the loop
gains are marked (*). cursor.state_dict() and data.state_dict() go into your checkpoint, if you keep any.
"""

import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import aioli
from aioli.adapters.pytorch import MixtureDataset
from aioli.data import MixtureSampler, local_corpus, prepare

STEPS, BATCH, CONTEXT, WIDTH = 96, 16, 64, 64
GROUPS, TARGET = ["python", "headers"], "stubs"  # train on these, towards that
sources = [{"group": name, "files": str(path)} for name, path in local_corpus(0.5).items() if name in (*GROUPS, TARGET)]
recipe = {"sources": sources, "tokenizer": {"train": {"vocab_size": 512}}, "context": CONTEXT, "cut": 5000}
store = prepare(recipe, tempfile.mkdtemp() + "/store")
held_out = torch.from_numpy(store.rows(TARGET, "val")[:32].astype("int64"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(512, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 512)

    def forward(self, ids):
        x = self.words(ids) + self.places.weight
        x = self.layers(x, mask=nn.Transformer.generate_square_subsequent_mask(CONTEXT), is_causal=True)
        return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def evaluate():
    model.eval()
    with torch.no_grad():
        loss = model(held_out).item()
    model.train()
    return [loss]


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
policy = aioli.create("aioli-ood", rounds=4, k=2).policy(groups=GROUPS, steps=STEPS, targets=[TARGET])
cursor = aioli.Cursor(policy, {"val_loss": evaluate})
data = MixtureDataset(MixtureSampler(store, BATCH, groups=GROUPS), cursor)  # (*)
for batch in DataLoader(data, batch_size=None, num_workers=2):  # ends with the policy
    optimizer.zero_grad()
    model(batch["input_ids"]).backward()
    optimizer.step()
    cursor.step()  # (*)
shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(GROUPS, policy.report()["p"], strict=True))
print(f"perplexity on {TARGET} {torch.tensor(evaluate()).exp().item():.1f}; last mixture: {shares}")
