"""Run by test_distributed on every process: trains the jobs of a JSON file, one after another.

A job is a recipe, a directory, and the step at which one rank, not the first, is asked to stop (0: never). With a
second argument, `shard`, parameters are sharded (FSDP2), which accelerate does on CPUs only if its state is told to.
"""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

from aioli.train import Run, StoppedError, TrainRecipe

opened = []
shard = "shard" in sys.argv[2:]
begin = AcceleratorState.__init__


def begin_sharded(self, *arguments, fsdp_plugin=None, **more):
    """A state in which models are sharded."""
    begin(self, *arguments, fsdp_plugin=fsdp_plugin, **more)
    if fsdp_plugin is not None:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin


if shard:
    AcceleratorState.__init__ = begin_sharded
    os.environ |= {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "GPTNeoXLayer",
    }


def watch(event, arguments):
    """Note every file that is opened for writing."""
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        opened.append(str(arguments[0]))


sys.addaudithook(watch)
for job in json.loads(Path(sys.argv[1]).read_text()):
    run = Run(TrainRecipe.model_validate(job["recipe"]), job["path"], lambda run: None)
    rank, stepped = run.accelerator.process_index, run._stepped
    if run.accelerator.num_processes != 2:
        sys.exit(f"{run.accelerator.num_processes} processes")
    if shard != hasattr(next(run.engine.model.parameters()), "full_tensor"):
        sys.exit(f"sharded: {not shard}")

    def stepping(engine, run=run, rank=rank, stop=job["stop"], stepped=stepped):
        if stop and engine.step >= stop and rank == 1:
            run.stop.set()
        stepped(engine)

    run.engine.after_step = stepping
    try:
        run.train()
    except StoppedError:
        if not job["stop"]:
            raise
    written = [file for file in opened if file.startswith(job["path"])]
    if bool(written) != (rank == 0):
        sys.exit(f"rank {rank} wrote {written}")
torch.distributed.destroy_process_group()
