"""Run the commands shown in the README and the docs, and put in what they print: python docs/generate.py [--check]

A console block whose first line is `$ aioli …` shows exactly what that command prints on this code. With --check
nothing is written; the exit code says whether all is current (only commands that take no time are checked).
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```console\n\$ (aioli [^\n]*)\n(.*?)```", re.DOTALL)
QUICK = ("aioli methods",)


def output_of(command: str) -> str:
    words = shlex.split(command)
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=True)
    return done.stdout.rstrip() + "\n"


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(check: bool) -> int:
    stale = []
    for page in pages():
        text = page.read_text()

        def renew(block: re.Match[str]) -> str:
            command = block[1]
            if check and not command.startswith(QUICK):
                return block[0]
            return f"```console\n$ {command}\n{output_of(command)}```"

        fresh = BLOCK.sub(renew, text)
        if fresh != text:
            stale.append(page.name)
            if not check:
                page.write_text(fresh)
    if stale:
        print(("not current: " if check else "renewed: ") + ", ".join(stale))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
