"""Speed of `prepare` against the tokenizer alone on the same documents: python benchmarks/prepare.py [--megabytes 8]

Raw is `tokenizers`' `encode_batch_fast` on all cores, batches of 1,000 documents that are already in memory, tokens
thrown away; ours reads packed files, hashes, tokenizes, writes, splits, removes duplicates and checksums. Ratios are
medians of interleaved runs in one process.
"""

import argparse
import gzip
import json
import statistics
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer

from aioli.data import local_corpus, prepare

REPEATS = 5


def seconds(action):
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--megabytes", type=float, default=8.0, help="text of each group")
    options.add_argument("--vocabulary", type=int, default=8192)
    chosen = options.parse_args()
    place = Path(tempfile.mkdtemp())
    texts = []
    for name, file in local_corpus(chosen.megabytes).items():
        lines = file.read_bytes()
        (place / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines))
        texts += [json.loads(line)["text"] for line in lines.splitlines()]
    sources = [{"files": str(place / "*.jsonl.gz"), "group_by": "file"}]
    recipe = {"sources": sources, "context": 1024, "splits": {"val": 5, "test": 5}}
    first = prepare({**recipe, "tokenizer": {"train": {"vocab_size": chosen.vocabulary}}}, place / "first")
    tokenizer = Tokenizer.from_file(str(first.tokenizer / "tokenizer.json"))
    recipe["tokenizer"] = str(first.tokenizer)

    def raw():
        for k in range(0, len(texts), 1000):
            tokenizer.encode_batch_fast(texts[k : k + 1000], add_special_tokens=False)

    def ours(k):
        prepare(recipe, place / f"store{k}")

    pairs = [(seconds(raw), seconds(lambda k=k: ours(k))) for k in range(REPEATS)]
    size = sum(len(text.encode()) for text in texts) / 1e6
    found = {
        "megabytes": round(size, 1),
        "documents": len(texts),
        "raw_mb_per_second": round(size / statistics.median(a for a, _ in pairs), 2),
        "prepare_mb_per_second": round(size / statistics.median(b for _, b in pairs), 2),
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
