"""Run by test_adapters_huggingface on two processes: a Trainer under a policy, whole, and interrupted and resumed.

In: a store and a folder. Out, in the folder: journals, checkpoints, and what each process was trained on.
"""

import json
import sys
from pathlib import Path

from test_adapters_huggingface import BATCH, STEPS, Stop, attached, small_model

from aioli.data import TokenStore

store, folder = TokenStore(sys.argv[1]), Path(sys.argv[2])
more = {"per_device_train_batch_size": BATCH // 2, "gradient_accumulation_steps": 2, "save_steps": STEPS}


def train(place, callbacks=(), resume=None):
    model = small_model(dropout=0.0)
    trainer = attached(folder / place, store, callbacks=callbacks, model=model, save_strategy="steps", **more)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


whole = train("whole")
(folder / f"seen-{whole.args.process_index}.json").write_text(json.dumps(whole.model.seen))
train("parts", [Stop(9)])
train("parts", resume=True)
