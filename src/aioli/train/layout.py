"""What is in the directory of a run."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from aioli.files import locked

RECIPE = "recipe.yaml"
"""Everything that was asked for."""
JOURNAL = "journal.jsonl"
"""What happened, line by line."""
CHECKPOINTS = "checkpoints"
STATUS = "status.json"
"""What a run is doing right now, for those who watch; nothing depends on it."""
MODEL, RESULT = "model", "result.json"
"""What came of it."""


def tidy(run: Path) -> None:
    """Remove what a process that was killed has left in the directory of a run, unless somebody holds it."""
    hidden = [file for name in (RECIPE, RESULT, MODEL, CHECKPOINTS, STATUS) for file in run.glob(f".{name}.*")]
    if hidden or (run / "lock").exists() or (run / STATUS).exists():
        with suppress(OSError, ValueError), locked(run, str(run)):  # nobody's business if it cannot be written
            for file in [*hidden, run / STATUS]:
                if file.is_dir():
                    shutil.rmtree(file, ignore_errors=True)
                else:
                    file.unlink(missing_ok=True)
