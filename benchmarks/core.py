"""Speed of the core, as JSON: python benchmarks/core.py

Times are medians of repeated runs on this machine; the goals are 100 µs for ask + tell at m = 7 and 100 ms for all the
asks, tells and linear algebra of one Aioli round at m = 1000.
"""

import json
import platform
import statistics
import subprocess
import sys
import time

import numpy as np

from aioli.lmo import EGD, Direct, ExcessLoss, InterleavedSweep, LogLinearStatic, PooledSweep, Task
from aioli.policies import Bandit, Online, RulePolicy
from aioli.testing import observation_for

REPEATS = 7


def median(action):
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def policy_segment(rules, task):
    """Microseconds per ask + tell, observations made beforehand."""
    policy, told = RulePolicy(rules, task), []
    while (segment := policy.ask()) is not None:
        told.append(observation_for(segment, task, len(told)))
        policy.tell(told[-1])

    def run():
        policy = RulePolicy(rules, task)
        for observation in told:
            policy.ask()
            policy.tell(observation)

    return 1e6 * median(run) / len(told)


def round_at(m, exact, k):
    """Milliseconds for every ask and tell of one round of Aioli with k sweeps, its solve and its step."""
    task = Task(m, 4 * m * k)
    rules = Online(InterleavedSweep(k=k), EGD(0.2), 1, "shift-sum")
    policy, told = RulePolicy(rules, task), []
    rng = np.random.default_rng(0)
    while (segment := policy.ask()) is not None:
        observation = observation_for(segment, task, len(told))
        if not exact:  # realised mixtures that differ from the requested ones: a general solve
            object.__setattr__(observation, "tokens", observation.tokens * rng.uniform(0.9, 1.1, m))
        told.append(observation)
        policy.tell(observation)

    def run():
        policy = RulePolicy(rules, task)
        for observation in told:
            policy.ask()
            policy.tell(observation)

    return 1e3 * median(run)


def law_fit():
    """Milliseconds to fit the log-linear law to 512 runs of 17 groups and 13 targets."""
    rng = np.random.default_rng(0)
    P, A = rng.dirichlet(np.ones(17), 512), rng.normal(0, 1, (13, 17))
    L = 2 + np.exp(-P @ A.T) + 0.01 * rng.normal(size=(512, 13))
    return 1e3 * median(lambda: LogLinearStatic().fit(P, L))


def direct(m):
    rng = np.random.default_rng(0)
    law = LogLinearStatic()
    law.A_, law.b_, law.c_ = rng.normal(0, 1, (m, m)), np.ones(m), np.ones(m)
    return 1e3 * median(lambda: Direct().solve(law))


def import_seconds(module):
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def main():
    seven = Task(7, 2000)
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "numpy": np.__version__,
                "ask_tell_us_at_m7": {
                    "aioli": policy_segment(Online(InterleavedSweep(), EGD(0.2), None, "shift-sum"), seven),
                    "aioli-pooled": policy_segment(Online(PooledSweep(), EGD(3.0, "ema(0)"), None), seven),
                    "doremi": policy_segment(Online(ExcessLoss(), EGD(0.01, smoothing=1e-3), "every step"), seven),
                    "odm": policy_segment(Bandit(), seven),
                },
                "round_ms_at_m1000": {
                    "k=1, requested = realised": round_at(1000, True, 1),
                    "k=1, general": round_at(1000, False, 1),
                    "k=2, requested = realised": round_at(1000, True, 2),
                },
                "log_linear_fit_ms_512x17x13": law_fit(),
                "direct_ms": {"m=17": direct(17), "m=200": direct(200)},
                "import_s": {"aioli": import_seconds("aioli"), "numpy alone": import_seconds("numpy")},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
