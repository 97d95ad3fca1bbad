"""An analysis as text, Markdown, JSON or a page."""

from __future__ import annotations

import json
from pathlib import Path

from aioli.analysis.study import Analysis, Table
from aioli.files import write_text
from aioli.fits.fit import finite
from aioli.report import page as pages

ENDINGS = (".md", ".json", ".html")


def markdown(found: Analysis) -> str:
    """Tables and words as Markdown."""
    parts = [f"# {found.title}", *found.words]
    for table in found.tables:
        parts += [f"## {table.title}", _table(table)]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [table.header, tuple("---" for _ in table.header), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def write(found: Analysis, path: Path) -> Path:
    """Write it in the form that the name of the file asks for."""
    if path.suffix == ".json":
        write_text(path, json.dumps(finite(found.to_json()), indent=1, ensure_ascii=False) + "\n")
    elif path.suffix == ".md":
        write_text(path, markdown(found))
    else:
        parts = [pages.paragraph(words) for words in found.words[1:]]
        for table in found.tables:
            parts += [pages.heading(table.title), pages.wide(pages.table(table.header, table.rows))]
        parts += [pages.figure(figure.svg, figure.caption) for figure in found.figures]
        pages.write(path, found.title, found.words[0] if found.words else "", parts, broad=True)
    return path
