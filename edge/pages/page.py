"""One HTML file that needs nothing else: no network, and no script but its own."""

from __future__ import annotations

import base64
import functools
import hashlib
from html import escape
from pathlib import Path


@functools.cache
def style() -> str:
    """CSS that all pages of Refocus share: light and dark colours, text, tables, figures."""
    return (Path(__file__).parent / "style.css").read_text(encoding="utf-8")


def page(title: str, body: str, css: str = "", script: str = "") -> str:
    """A whole HTML document.

    A content security policy forbids every request and every script but the one given.

    Args:
        title: text of the title and of the first heading; escaped here.
        body: HTML below the heading.
        css: rules besides those of :func:`style`.
        script: JavaScript, run once the body is there.
    """
    allowed, tail = "", ""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        allowed, tail = f"; script-src 'sha256-{digest}'", f"<script>{script}</script>"
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'{allowed}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style()}{css}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{body}</main>{tail}</body></html>\n"
    )


def data_uri(content: bytes, kind: str) -> str:
    """A file as a ``data:`` URI, for an ``img`` element.

    Args:
        kind: media type, as "image/png".
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
