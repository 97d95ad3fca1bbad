"""Run by test_adapters_lightning: two processes, of which Lightning starts the second. In: a store and a folder."""

import json
import os
import sys
from pathlib import Path

from test_adapters_lightning import fitted

from aioli.data import TokenStore

store, folder = TokenStore(sys.argv[1]), Path(sys.argv[2])
model = fitted(folder, store, batch=2, strategy="ddp", devices=2)
(folder / f"seen-{os.environ.get('LOCAL_RANK', 0)}.json").write_text(json.dumps(model.seen))
