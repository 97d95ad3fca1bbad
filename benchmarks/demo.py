"""What the demo shows over several seeds: python benchmarks/demo.py [--seeds 5] [--in-domain] [-o DIR] [--json FILE]

Runs `aioli demo --seed 0`, `1`… (those that are finished are not run again) and gives the change of test perplexity of
each, paired with even shares at the same seed, and their mean with a 95% interval over seeds.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy import stats


def perplexity(path):
    return json.loads((path / "result.json").read_text())["test"]["mean_perplexity"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--in-domain", action="store_true")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("-o", "--out", default="aioli-demo", help="directory of the demo")
    parser.add_argument("--json", help="write the figures here too")
    options = parser.parse_args()
    kind, method = ("in-domain", "aioli") if options.in_domain else ("prose", "aioli-ood")
    changes = []
    for seed in range(options.seeds):
        command = ["demo", "--seed", str(seed), "--steps", str(options.steps), "-o", options.out]
        command += ["--in-domain"] * options.in_domain
        subprocess.run([sys.executable, "-m", "aioli", *command], check=True, stdout=sys.stderr)
        runs = [Path(options.out) / f"{kind}-{name}-seed-{seed}-{options.steps}" for name in ("stratified", method)]
        even, mixed = map(perplexity, runs)
        changes.append(mixed / even - 1)
    mean, error = np.mean(changes), stats.sem(changes)
    low, high = stats.t.interval(0.95, len(changes) - 1, mean, error)
    found = {
        "what": f"test perplexity of {method} against even shares, {kind}, {options.steps} steps",
        "change": [round(change, 4) for change in changes],
        "mean": round(float(mean), 4),
        "interval_95": [round(float(low), 4), round(float(high), 4)],
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
