"""A page that needs nothing but a browser: no font, no address, and a script only where asked for. Words from data are
escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from aioli.files import write_text

STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5b6675; --line: #d9dee5; --paper: #fbfcfd; --card: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa5b4; --line: #39424f; --paper: #161b22; --card: #1e252e; }
}
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0; }
main { max-width: 46rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; } main.broad { max-width: 64rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h2.part { font-size: 1.35rem; border-top: 1px solid var(--line); padding-top: 1.4rem; }
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
.wide { overflow-x: auto; } .wide td { white-space: nowrap; }
.wide td, .wide th { padding: .35rem .5rem; font-size: .9rem; }
.wide td:first-child { white-space: normal; min-width: 11rem; } .note { color: var(--soft); }
details { margin: .6rem 0; } summary { cursor: pointer; font-weight: 600; } details > summary + * { margin-top: .6rem; }
.live [data-legend] { cursor: pointer; } .live [data-legend].off { opacity: .35; text-decoration: line-through; }
.live [data-series].off { display: none; } [data-legend]:focus-visible { outline: 2px solid currentColor; }
.slider { display: flex; gap: .8rem; align-items: center; margin: .4rem 0; }
.slider input { flex: 1; max-width: 24rem; }
html:not(.live) .slider { display: none; }
@media screen and (max-width: 540px) {
  figure { overflow-x: auto; } figure svg { min-width: calc(var(--units, 640) * .75px); }
  figure:has(svg.broad) figcaption::before { content: "Swipe sideways to see all of it. "; }
}
@media print {
  :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --card: #fff; }
  main, main.broad { max-width: none; padding: 0; } figure, tr { break-inside: avoid; } .slider { display: none; }
  .wide { overflow: visible; } pre { white-space: pre-wrap; }
}
"""


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain words."""
    return f"<p{f' class={kind!r}' if kind else ''}>{escape(text)}</p>"


def heading(text: str, kind: str = "") -> str:
    """The heading of a section; of kind `part`, of several sections."""
    return f"<h2{f' class={kind!r}' if kind else ''}>{escape(text)}</h2>"


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


def folded(summary: str, part: str, opened: bool = False) -> str:
    """Something that is looked at when it is wanted."""
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{part}</details>"


def frames(svg: str, caption: str, data: dict[str, Any]) -> str:
    """A heat map with a slider: `data` has the values of every frame and what it is called."""
    # a data block is never run; `<` is written so that nothing in it can end the block
    block = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    last = len(data["names"]) - 1
    return (
        f'<figure data-heat>{svg}<div class="slider"><input type="range" min="0" max="{last}" value="{last}" '
        f'aria-label="round"><output>{escape(data["names"][last])}</output></div>'
        f'<script type="application/json">{block}</script><figcaption>{escape(caption)}</figcaption></figure>'
    )


def script() -> str:
    """What makes legends and sliders work."""
    return (resources.files("aioli.report") / "live.js").read_text(encoding="utf-8")


def document(
    title: str, lead: str, parts: Sequence[str], broad: bool = False, live: bool = False, follow: str | None = None
) -> str:
    """A whole page; `live` adds the script. With `follow` it asks its server there for news; it may talk to nobody
    else."""
    policy, tail = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'", ""
    if live:
        code = script()
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        tail = f"<script>{code}</script>"
    if follow is not None:
        policy += "; connect-src 'self'"
    marked = "" if follow is None else f' data-follow="{escape(follow)}"'
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body{marked}><main{' class=broad' if broad else ''}><h1>{escape(title)}</h1>{paragraph(lead, 'lead')}"
        f"{''.join(parts)}</main>{tail}</body></html>\n"
    )


def write(path: Path, title: str, lead: str, parts: Sequence[str], broad: bool = False, live: bool = False) -> Path:
    """Write the page, whole or not at all; a broad one has room for tables."""
    write_text(path, document(title, lead, parts, broad, live))
    return path
