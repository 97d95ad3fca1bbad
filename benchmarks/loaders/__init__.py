"""The loaders one would pick instead of ours, each in its best forms: the contenders of benchmarks/loader.py.

Each peer runs in a process of its own, so that its threads and workers disturb no other. A new one is a function in
forms.py and a line in its PEERS.
"""

from loaders.forms import PEERS, Task, installed
from loaders.serving import seconds, serve, settled

__all__ = ["PEERS", "Task", "installed", "seconds", "serve", "settled"]
