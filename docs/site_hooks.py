"""What `make site` does beyond Markdown: equations become MathML, links out of docs/ lead to copies inside the site.

A browser draws MathML by itself, so that a page needs no script and no font from elsewhere. Files that pages link to
with `../`, such as measurements and examples, come along; so do the pages that live at the root of the repository.
Links that show the name of a page, as on GitHub, show its title.
"""

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
OUTWARD = re.compile(r"\]\(\.\./([^)#\s]+)")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add what pages link to outside docs/."""
    found = {name for page in (ROOT / "docs").glob("*.md") for name in OUTWARD.findall(page.read_text())}
    for name in sorted({*found, *ROOT_PAGES}):
        if (ROOT / name).is_file():
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to those files, where they are in the site."""
    if page.file.src_uri in ROOT_PAGES:
        markdown = re.sub(r"\[docs/([\w-]+\.md)\]\(docs/", r"[\1](", markdown).replace("](docs/", "](")

    def titled(link: re.Match[str]) -> str:
        other = files.get_file_from_path(link[1])
        return link[0] if other is None or other.page is None else f"[{other.page.title}]({link[1]}"

    return re.sub(r"\[([\w-]+\.md)\]\(\1", titled, OUTWARD.sub(r"](\1", markdown))


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """LaTeX to MathML."""
    return EQUATION.sub(_mathml, content)


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    return str(convert(html.unescape(found[3]).strip(), display=display))
