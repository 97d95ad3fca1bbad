"""Run by test_adapters_lightning: two processes, of which Lightning starts the second. In: a store, a folder, how."""

import json
import os
import sys
from pathlib import Path

import torch
from lightning.pytorch import Callback
from test_adapters_lightning import fitted

from aioli.data import TokenStore

store, folder, how = TokenStore(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
rank = int(os.environ.get("LOCAL_RANK", 0))


class Apart(Callback):
    """Other random numbers in every process, for dropout."""

    def on_fit_start(self, trainer, module):
        torch.manual_seed(trainer.global_rank)


given = {"stop": 7 if "stop" in how else None, "resume": folder / "at.ckpt" if "resume" in how else None}
model = fitted(folder, store, batch=2, strategy="ddp", devices=2, first=[Apart()], **given)
(folder / f"seen-{rank}.json").write_text(json.dumps(model.seen))
if rank == 0:
    torch.save(model.state_dict(), folder / "weights.pt")
