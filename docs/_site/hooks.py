"""Hooks of MkDocs: navigation by folder, and pages for the files outside ``docs/`` that pages link to.

The same Markdown is read in the repository, where ``../edge/bundle/precision.py`` is a file, and on the site, where it
becomes a page with the text of that file. A linked folder of ``docs/`` without a page becomes a list of its files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)]*)?(\))")
CODE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r":(?:class|meth|func|mod|attr|data|exc):(?=<code>)")
LANGUAGES = {".py": "python", ".h": "c", ".c": "c", ".toml": "toml", ".json": "json", ".cpp": "cpp"}
NO_SEARCH = "---\nsearch: { exclude: true }\n---\n"


def on_config(config: Any) -> Any:
    """Expands ``folder/*`` and ``*`` in the navigation."""
    config.nav = _expand(config.nav, set(_named(config.nav)))
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for every file or folder that a page links to and that is no file of the site."""
    for page in [file for file in files if file.is_documentation_page() and not file.generated_by]:
        text = CODE.sub("", Path(str(page.abs_src_path)).read_text(encoding="utf-8"))
        for _, target, _, _ in LINK.findall(text):
            place = _target(page.src_uri, target)
            if place is not None and _needs_a_page(place) and files.get_file_from_path(uri := _uri(place)) is None:
                files.append(File.generated(config, uri, content=_content(place)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Leads links that leave ``docs/``, or to a folder, to the pages that :func:`on_files` added."""

    def led(match: re.Match[str]) -> str:
        place = _target(page.file.src_uri, match[2])
        if place is None or not _needs_a_page(place):
            return match[0]
        return f"{match[1]}{os.path.relpath(_uri(place), Path(page.file.src_uri).parent)}{match[3] or ''}{match[4]}"

    kept = [(match.start(), match.end()) for match in CODE.finditer(markdown)]
    pieces, end = [], 0
    for start, stop in kept:
        pieces += [LINK.sub(led, markdown[end:start]), markdown[start:stop]]
        end = stop
    return "".join([*pieces, LINK.sub(led, markdown[end:])])


def on_page_content(html: str, **_: Any) -> str:
    """Drops the roles of reStructuredText that docstrings have in front of names."""
    return ROLE.sub("", html)


def _named(nav: Any) -> Iterator[str]:
    """Every page that the navigation names, folders expanded."""
    for entry in nav.values() if isinstance(nav, dict) else nav:
        if isinstance(entry, str):
            yield from _pages(entry) if entry.endswith("/*") else [entry]
        else:
            yield from _named(entry)


def _expand(entry: Any, named: set[str]) -> Any:
    if isinstance(entry, dict):
        return {title: _expand(value, named) for title, value in entry.items()}
    if isinstance(entry, list):
        return [one for each in entry for one in _as_list(_expand(each, named))]
    if entry == "*":
        return sorted({path.name for path in DOCS.glob("*.md")} - named)
    if entry.endswith("/*"):
        return _pages(entry)
    return entry


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _pages(pattern: str) -> list[str]:
    folder = DOCS / pattern.removesuffix("/*")
    pages = sorted(folder.glob("*.md"), key=lambda path: (path.name != "README.md", path.name))
    return [path.relative_to(DOCS).as_posix() for path in pages]


def _target(page: str, link: str) -> Path | None:
    """The file or folder of the repository that a link of a page leads to."""
    if re.match(r"[a-z]+:", link):
        return None
    place = Path(os.path.normpath(DOCS / Path(page).parent / link))
    return place if place.exists() and place.is_relative_to(ROOT) else None


def _needs_a_page(place: Path) -> bool:
    return place.is_dir() if place.is_relative_to(DOCS) else True


def _uri(place: Path) -> str:
    """Where the page of a file or folder is, below the folder of pages."""
    inside = place.relative_to(ROOT).as_posix()
    return f"source/{inside}" if place.suffix == ".md" else f"source/{inside}.md"


def _content(place: Path) -> str:
    if place.is_dir():
        names = sorted(path.name + "/" * path.is_dir() for path in place.iterdir() if path.name[0] not in "._")
        return f"{NO_SEARCH}# {place.relative_to(ROOT).as_posix()}\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = place.read_text(encoding="utf-8")
    if place.suffix == ".md":  # its own links are relative to another folder: their text stays
        return NO_SEARCH + re.sub(r"!?\[([^\]]*)\]\((?!https://)[^)]*\)", r"\1", text)
    title, language = place.relative_to(ROOT).as_posix(), LANGUAGES.get(place.suffix, "text")
    return f"{NO_SEARCH}# {title}\n\n````{language}\n{text}\n````\n"
