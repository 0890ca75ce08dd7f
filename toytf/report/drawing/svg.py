"""Elements and texts of an SVG picture: whatever a name contains is shown as it is and never becomes markup."""

import html
import re
from textwrap import wrap
from unicodedata import east_asian_width

LINE = 15
"""Pixels from one line of text to the next."""

_TAGS = frozenset({"sup", "sub", "s", "u", "b", "i", "a", "span", "em"})
_NARROW, _WIDE = frozenset("iljtfrI.,:;|!'()[]{}/ -"), frozenset("mwMW@%—…")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_COLOUR = re.compile(r"#[\da-fA-F]{3,8}|[a-zA-Z]+|(rgb|hsl)a?\([\d.,%\s]+\)")
_BLACK = frozenset({"black", "#000", "#000000", "rgb(0,0,0)"})


def element(tag: str, *inside: str, **attributes: object) -> str:
    """`<tag …>inside</tag>`: inside is SVG already, attributes are escaped, and those that are None are left out."""
    given = "".join(
        f' {name.replace("_", "-")}="{_escaped(f"{value:.5g}" if isinstance(value, float) else str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{given}>{''.join(inside)}</{tag}>" if inside else f"<{tag}{given}/>"


def text(
    label: str, x: float, y: float, *, size: int = 11, anchor: str = "start", turned: bool = False, longest: int = 200,
    fill: str = "currentColor",
) -> str:  # fmt: skip
    """A line of text, from below to above if turned; a label that is too long has its full text as the tooltip."""
    short = shortened(label, longest)
    title = [element("title", _escaped(label))] if short != label else []
    turn = f"rotate(-90 {x:.1f} {y:.1f})" if turned else None
    style = {"font_size": size, "text_anchor": anchor, "fill": fill, "transform": turn}
    return element("text", *title, _escaped(short), x=float(x), y=float(y), **style)


def shown(label: object) -> str:
    """What plotly shows of a text: without the tags that it knows, with entities as characters; others stay literal."""
    if label is None:
        return ""
    parts = re.split(r"(<[^<>]*>)", str(label))
    return "".join(_part(part) for part in parts)


def _part(part: str) -> str:
    found = re.fullmatch(r"</?([^\s>]*)(\s.*)?>", part, re.DOTALL)
    name = found[1].lower() if found else ""
    if name in ("br", "br/"):
        return " "
    return "" if name in _TAGS else re.sub(r"&(#\d+|#x[\da-fA-F]+|\w+);", lambda entity: html.unescape(entity[0]), part)


def breadth(label: str, size: float = 11) -> float:
    """About how many pixels a text is wide; the font is not known, so rather too many."""
    return size * sum(map(_em, label))


def _em(character: str) -> float:
    if character in _NARROW:
        return 0.38
    if character in _WIDE or east_asian_width(character) in "WF":
        return 1.0
    return 0.7 if character.isupper() else 0.6


def shortened(label: str, longest: int) -> str:
    """Both ends of a text, since names that begin alike differ at their ends: `recall/…ighted`."""
    if len(label) <= longest:
        return label
    tail = (longest - 1) * 2 // 5
    return f"{label[: longest - 1 - tail]}…{label[-tail:]}"


def wrapped(label: str, pixels: float, size: float = 12) -> list[str]:
    """The lines of a title that is not to be cut."""
    return wrap(label, max(10, int(pixels / (0.58 * size))))


def ink(colour: object, default: str = "currentColor") -> str:
    """A colour of a figure; black is the colour of the text, so that it can be read on a dark page too."""
    if not isinstance(colour, str) or not _COLOUR.fullmatch(colour):
        return default
    return "currentColor" if re.sub(r"\s", "", colour.lower()) in _BLACK else colour


def _escaped(label: str) -> str:
    return html.escape(_NOT_XML.sub("\ufffd", label))
