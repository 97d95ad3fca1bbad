"""Aioli in TRL's SFTTrainer, on an instruction mixture: python examples/trl_sft.py

Three tasks are made of Python's own documentation; the mixture adapts towards answering all of them. Loss is on the
answers only. Only the lines marked (*) are aioli's. Needs `pip install 'aioli-mix[trl]'`.
"""

import builtins
import importlib
import inspect
import tempfile

from datasets import Dataset
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

import aioli
from aioli.adapters.huggingface import AioliCallback

STEPS = 96


def examples():
    """(task, prompt, completion) of every documented function in some modules."""
    for module in (
        builtins,
        *map(importlib.import_module, ("math", "os", "re", "random", "json", "inspect", "shutil")),
    ):
        for name, thing in inspect.getmembers(module, callable):
            about = (inspect.getdoc(thing) or "").partition("\n")[0][:80]
            if about and not name.startswith("_"):
                yield "describe", f"What does {name} do?\n", about
                yield "name", f"Which function is this: {about}\n", name
                yield "module", f"Where does {name} come from?\n", module.__name__


columns = dict(zip(("task", "prompt", "completion"), zip(*examples(), strict=True), strict=True))
data = Dataset.from_dict({name: list(values) for name, values in columns.items()}).train_test_split(0.2, seed=0)
words, text = ByteLevelBPETokenizer(), [*columns["prompt"], *columns["completion"]]
words.train_from_iterator(text, vocab_size=512, special_tokens=["<|end|>"], show_progress=False)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words._tokenizer, eos_token="<|end|>", pad_token="<|end|>")
shape = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
set_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=128, **shape))

args = SFTConfig(
    tempfile.mkdtemp(),
    max_steps=STEPS,
    per_device_train_batch_size=16,
    learning_rate=3e-3,
    max_length=128,
    bf16=False,
    logging_steps=20,
    report_to=[],
)
trainer = SFTTrainer(model, args, train_dataset=data["train"], eval_dataset=data["test"], processing_class=tokenizer)
policy = aioli.create("aioli", rounds=4, k=2).policy(groups=["describe", "name", "module"], steps=STEPS)  # (*)
AioliCallback(policy, "task").attach(trainer)  # (*)
trainer.train()
print("last mixture:", {name: round(share, 3) for name, share in zip(policy.groups, policy.report()["p"], strict=True)})
