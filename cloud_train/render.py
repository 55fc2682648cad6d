"""Pages from Jinja2 templates, which lie beside the code whose figures they show."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from refocus.edge.pages import style


def render(template: str, /, **values: Any) -> str:
    """Render a page.

    In HTML every value is escaped; ``STYLE`` is the style sheet of all pages. Beside Jinja's own filters there are
    ``f``, which is :func:`format`, and ``paragraph``, which makes one line of what is several lines in the template.

    Args:
        template: its path below ``cloud_train``, as "evaluate/report.html.j2".
    """
    return renderer(Path(__file__).parent)(template, **values)


@functools.cache
def renderer(folder: Path) -> Callable[..., str]:
    """Return :func:`render` for templates below another folder."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["STYLE"] = Markup(style())  # noqa: S704 - our own file
    environment.filters |= {"f": format, "paragraph": _paragraph}
    return lambda template, /, **values: environment.get_template(template).render(**values)


def _paragraph(text: str) -> str:
    return type(text)(" ".join(text.split()) + "\n")  # text that is escaped already stays so
