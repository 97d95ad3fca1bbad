"""A page that needs nothing but a browser: no script, no font, no address. Words from data are escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from aioli.files import write_text

STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5b6675; --line: #d9dee5; --paper: #fbfcfd; --card: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa5b4; --line: #39424f; --paper: #161b22; --card: #1e252e; }
}
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0; }
main { max-width: 46rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; } main.broad { max-width: 64rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.lead { font-size: 1.1rem; color: var(--soft); margin-top: 0; }
figure { margin: 1rem 0; background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .8rem; }
figcaption { color: var(--soft); font-size: .9rem; margin-top: .3rem; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; display: block; margin: 0 auto; }
svg text:not([fill]) { fill: var(--soft); } svg text.ink { fill: var(--ink); } .ink-line { stroke: var(--ink); }
.grid { stroke: var(--line); stroke-width: 1; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .4rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); font-weight: 600; font-size: .9rem; }
tr.best td { font-weight: 700; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .8rem; overflow-x: auto; }
pre.wrap { white-space: pre-wrap; overflow-wrap: anywhere; } ul { padding-left: 1.2rem; }
.wide { overflow-x: auto; } .wide td, .wide th { white-space: nowrap; padding: .35rem .5rem; font-size: .9rem; }
.note { color: var(--soft); }
"""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain words."""
    return f"<p{f' class={kind!r}' if kind else ''}>{escape(text)}</p>"


def heading(text: str) -> str:
    """The heading of a section."""
    return f"<h2>{escape(text)}</h2>"


def figure(svg: str, caption: str) -> str:
    """A chart with what it shows."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], best: int | None = None) -> str:
    """A table; the best row stands out."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr{' class=best' if k == best else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for k, row in enumerate(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def wide(part: str) -> str:
    """Something that may be wider than the page and then scrolls by itself."""
    return f'<div class="wide">{part}</div>'


def commands(lines: Sequence[str]) -> str:
    """Commands to copy."""
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def pasted(lines: Sequence[str]) -> str:
    """Lines to copy that may be long: they are wrapped."""
    return f'<pre class="wrap">{escape((chr(10) * 2).join(lines))}</pre>'


def listed(lines: Sequence[str]) -> str:
    """A list of plain words."""
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def write(path: Path, title: str, lead: str, parts: Sequence[str], broad: bool = False) -> Path:
    """Write the page, whole or not at all; a broad one has room for tables."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main{' class=broad' if broad else ''}><h1>{escape(title)}</h1>{paragraph(lead, 'lead')}"
        f"{''.join(parts)}</main></body></html>\n"
    )
    write_text(path, text)
    return path
