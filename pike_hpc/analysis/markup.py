"""HTML that cannot be broken out of: a string is text unless it was made here.

Contract: `tag` escapes every plain string, in content and in attributes, and shows characters
without a shape as ⟨U+202E⟩. Only `Html` passes through, and only this module, `trusted_svg`
included, makes it. Knows nothing of reports.
"""

from __future__ import annotations

import html
import re

from pike_hpc.analysis.text import visible

_XML_TAG = re.compile(r"<[^>]*>")
_LOCAL_ID = re.compile(r'(\sid="|xlink:href="#|url\(#)')
_GLOBAL_STYLE = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>|<metadata>.*?</metadata>", re.S)
_SIZE = re.compile(r'\s(?:width|height)="[^"]*"')


class Html(str):
    """Markup that is safe to put into a page as it is."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | None) -> Html:
    """An element. `class_` is class, "_" in attribute names is "-", None leaves one out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{given}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Children one after the other; plain strings escaped."""
    return Html("".join(c if isinstance(c, Html) else _text(c) for c in children))


def trusted_svg(svg: str, prefix: str, title: str) -> Html:
    """An SVG file of our own as an inline element whose ids start with `prefix`.

    Prologue, metadata, fixed size and the style rule for the whole document are left out.
    """
    body = _GLOBAL_STYLE.sub("", svg[svg.index("<svg") :])
    opening, rest = body[: body.index(">") + 1], body[body.index(">") + 1 :]
    opening = _SIZE.sub("", opening)[:-1] + f' role="img" aria-label="{_text(title)}">'
    rest = _XML_TAG.sub(lambda m: _LOCAL_ID.sub(rf"\g<1>{prefix}-", m.group()), rest)
    return Html(opening + rest)


def _text(text: str) -> str:
    return html.escape(visible(text), quote=True)
