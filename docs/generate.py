"""Renew what the README and the docs take from the code: python docs/generate.py [--check]

A console block whose first line is `$ aioli …` shows exactly what that command prints on this code, what stands between
`<!-- generated: NAME -->` and `<!-- end -->` is made by `reference.py`, and pages of measured results (peers.md) are
made of these. With --check nothing is written; the exit code says whether all is current (only commands that take no
time are checked).
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import reference

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```console\n\$ (aioli [^\n]*)\n(.*?)```", re.DOTALL)
PART = re.compile(r"<!-- generated: ([^\n]*?) -->\n(.*?)<!-- end -->", re.DOTALL)
QUICK = ("aioli methods", "aioli export --list")


def output_of(command: str) -> str:
    words = shlex.split(command)
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True)
    return done.stdout.rstrip() + "\n"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def made() -> dict[Path, str]:
    """Pages that are made of results as a whole."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from contest.page import page
    from faults.page import page as reliability

    results = ROOT / "results"
    return {
        ROOT / "docs" / "peers.md": page(json.loads((results / "peers.json").read_text())),
        ROOT / "docs" / "reliability.md": reliability(
            json.loads((results / "soak.json").read_text()), results / "load.json"
        ),
    }


def main(check: bool) -> int:
    stale = []
    for page, fresh in made().items():
        if not page.exists() or fresh != page.read_text():
            stale.append(page.name)
            if not check:
                page.write_text(fresh)
    for page in pages():
        text = page.read_text()

        def renew(block: re.Match[str]) -> str:
            command = block[1]
            if check and not command.startswith(QUICK):
                return block[0]
            return f"```console\n$ {command}\n{output_of(command)}```"

        fresh = BLOCK.sub(renew, text)
        fresh = PART.sub(
            lambda part: f"<!-- generated: {part[1]} -->\n\n{reference.PARTS[part[1]]()}\n\n<!-- end -->", fresh
        )
        if fresh != text:
            stale.append(page.name)
            if not check:
                page.write_text(fresh)
    if stale:
        print(("not current: " if check else "renewed: ") + ", ".join(stale))
    return int(check and bool(stale))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is not current")
    sys.exit(main(parser.parse_args().check))
