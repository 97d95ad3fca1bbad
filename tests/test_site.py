"""The documentation as a site: it builds without a warning, with every page, and loads nothing from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """`make site`, into a directory of its own: a page that is not in the navigation, a link or an anchor that leads
    nowhere, a name that the reference cannot find are warnings, and warnings are errors."""
    place = tmp_path_factory.mktemp("site")
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*BUILD, "-d", place], capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Documentation built" in done.stderr  # said, so that warnings were counted: --quiet would count none
    return place


class Page(HTMLParser):
    """What a page loads, where its links lead, and the places in it that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads, self.links, self.anchors = set[str](), set[str](), set[str]()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a":
            self.links.add(found.get("href", ""))
        elif tag == "link" and found.get("rel") != "canonical":
            self.loads.add(found.get("href", ""))
        elif "src" in found:
            self.loads.add(found["src"])


def test_nothing_is_loaded_from_elsewhere(site):
    for path in site.rglob("*.html"):
        for address in Page(path).loads:
            assert not re.match(r"(https?:)?//", address), f"{path.name} loads {address}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", path.read_text()), path.name


def test_links_in_the_site_lead_somewhere(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(unquote(link))
            if path.name == "404.html" or re.match(r"[a-z]+:", address):
                continue
            target = (path.parent / address).resolve() if address else path
            assert target.is_file(), f"{path.name} links to {link}"
            assert not anchor or target not in pages or anchor in pages[target].anchors, f"{path.name} links to {link}"


def test_equations_are_drawn_by_the_browser_itself(site):
    text = "".join(path.read_text() for path in site.rglob("*.html"))
    assert text.count("<math") > 10
    assert "arithmatex" not in text
    for equation in re.findall(r"<math.*?</math>", text, re.DOTALL):
        assert "\\" not in equation, equation  # a command that was not understood
