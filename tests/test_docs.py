"""Every link and anchor of the pages leads somewhere, and the site is built without a warning or a foreign file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEFT_OUT = {".venv", ".venv-device", "site", "demo", "runs", "build", "node_modules", ".pytest_cache", "fixtures"}
PAGES = sorted(
    path for path in ROOT.rglob("*.md") if not LEFT_OUT & set(path.relative_to(ROOT).parts) and not path.is_symlink()
)
PAGES = [page for page in PAGES if page.relative_to(ROOT).parts[0] != "refocus"]  # links to the other folders
CODE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def links(text: str) -> list[tuple[str, str]]:
    """Targets and anchors of the links of a page, code left out."""
    return LINK.findall(CODE.sub("", text))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    found: dict[str, int] = {}
    text = re.sub(r"^( *)(```|~~~).*?^\1\2 *$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#+ +(.+?) *#*$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
        found.setdefault(f"{slug}-{found[slug]}", 0)
    return frozenset(found)


def broken(page: Path, text: str) -> list[str]:
    wrong = []
    for target, anchor in links(text):
        if re.match("[a-z]+:", target):
            wrong += [] if target.startswith("https://") else [target]
            continue
        place = (page.parent / target).resolve() if target else page
        if not place.exists() or not place.is_relative_to(ROOT.resolve()):
            wrong.append(target)
        elif anchor and (place.suffix != ".md" or anchor not in anchors(place)):
            wrong.append(f"{target}#{anchor}")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_anchor_leads_somewhere(page):
    assert broken(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    ["[a](nothing.md)", "[a](docs/gate.md#no-such-heading)", "[a](http://example.org)", "[a](#nowhere)", "[a](/etc)"],
)
def test_the_link_check_can_fail(text):
    assert broken(ROOT / "README.md", text)


class Site(HTMLParser):
    """What a page of the site loads, leads to and can be led to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        held = dict(attrs)
        if held.get("id"):
            self.anchors.add(held["id"])
        if tag in ("script", "img", "iframe", "source") and held.get("src"):
            self.loads.append(held["src"])
        if tag == "link" and held.get("rel") != "canonical" and held.get("href"):
            self.loads.append(held["href"])
        if tag == "a" and held.get("href"):
            self.leads.append(held["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="pip install 'refocus-edge[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_is_read_without_a_network_and_every_link_in_it_leads_somewhere(site):
    pages = {path: Site(path) for path in site.rglob("*.html") if "results/pipeline-demo" not in path.as_posix()}
    assert len(pages) > 100
    for path, page in pages.items():
        for loaded in page.loads:
            assert not re.match("(?:[a-z]+:)?//", loaded), f"{path.name} loads {loaded}"
            if path.name != "404.html":  # it is served from any address, so its own links are absolute
                assert (path.parent / loaded.split("?")[0].split("#")[0]).exists(), f"{path.name} loads {loaded}"
        for led in page.leads:
            target, _, anchor = led.partition("#")
            if re.match("[a-z]+:", led) or path.name == "404.html":
                continue
            place = (path.parent / target).resolve() if target else path
            assert place.exists(), f"{path.relative_to(site)}: {led}"
            if place in pages:
                assert anchor in pages[place].anchors, f"{path.relative_to(site)}: {led}"
    assert not list(site.rglob("*mermaid*"))


@pytest.mark.slow
def test_the_site_can_be_searched_and_holds_the_public_names(site):
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    for words in ("Recognizer", "train iciia", "class shares", "ExportSettings"):
        assert words in index
    api = (site / "api" / "index.html").read_text(encoding="utf-8")
    import refocus

    for name in set(refocus.__all__) - {"__version__"}:
        assert name in api
