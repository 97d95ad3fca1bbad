"""Mixing inside other people's trainers: `pytorch` (your own loop), `huggingface` (Trainer, TRL), `lightning`.

Each is imported by its own name and needs its framework then: `from aioli.adapters.huggingface import AioliCallback`.
"""

from __future__ import annotations


def lacking(error: ImportError, extra: str) -> ImportError:
    """What to say where a framework cannot be loaded: which one is not there, or what it says, and what to install."""
    module = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and module.isidentifier():
        why = f"this adapter needs {module}"
    else:  # it is there, but not as it should be: another version, or without what it needs itself
        why = f"this adapter's framework cannot be loaded ({' '.join(str(error).split())})"
    return ImportError(
        f"{why}: pip install 'aioli-mix[{extra}]', or in a clone pip install -c constraints.txt -e '.[{extra}]'",
        name=error.name,
    )
