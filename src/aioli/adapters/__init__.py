"""Mixing inside other people's trainers: `pytorch` (your own loop), `huggingface` (Trainer, TRL), `lightning`.

Each is imported by its own name and needs its framework then: `from aioli.adapters.huggingface import AioliCallback`.
"""

from __future__ import annotations


def lacking(error: ImportError, extra: str) -> ImportError:
    """What to say where a framework is not there: which one, and what to install."""
    what = (error.name or str(error)).partition(".")[0]
    return ImportError(
        f"this adapter needs {what}: pip install 'aioli-mix[{extra}]', or in a clone pip install -c constraints.txt -e "
        f"'.[{extra}]'",
        name=error.name,
    )
