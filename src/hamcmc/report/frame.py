"""What all pages share: the document around the sections, facts and figures at the top."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from itertools import count
from typing import Any

import numpy as np


def document(
    title: str, top: str, glance: str, sections: Mapping[str, str], version: str, *, policy: str = "", script: str = ""
) -> str:
    """A self-contained page: it asks nothing of the network, whatever its content is.

    Args:
        title: its heading.
        top: what stands below the heading.
        glance: what stands before the sections.
        sections: their names and contents.
        version: of the program.
        policy: more that the page may use, as in ``img-src data:``.
        script: what runs at the end of the page; `policy` must allow it.
    """
    links = "".join(f'<a href="#{name.lower()}">{name}</a>' for name in sections)
    body = "".join(f'<section id="{n.lower()}"><h2>{n}</h2>{content}</section>' for n, content in sections.items())
    allowed = "; ".join(filter(None, ("default-src 'none'", "style-src 'unsafe-inline'", policy)))
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'
        f"<title>{escape(title)} – hamcmc report</title>"
        f"<style>{files('hamcmc.report').joinpath('style.css').read_text()}</style></head>\n"
        f'<body><header><h1>{escape(title)}</h1>{top}<nav aria-label="Sections">{links}</nav></header>\n'
        f"<main>{glance}{number_ids(body)}</main>\n"
        f"<footer>Written on {written} by hamcmc {escape(version)}.</footer>"
        f"{f'<script>{script}</script>' if script else ''}</body></html>\n"
    )


def facts(of: Mapping[str, Any]) -> str:
    """Names and what they are."""
    return "<dl>" + "".join(f"<dt>{k}</dt><dd>{escape(str(v))}</dd>" for k, v in of.items()) + "</dl>"


def at_a_glance(cards: Iterable[tuple[str, str, str, str]], checks: Iterable[str]) -> str:
    """The numbers that matter first (name, value, note, and grade: good, warn or none), and what they mean."""
    items = "".join(
        f'<li><span>{name}</span><strong class="{grade}">{value}</strong><span>{escape(note)}</span></li>'
        for name, value, note, grade in cards
    )
    said = "".join(f"<li>{escape(c)}</li>" for c in checks)
    return f'<ul class="cards" aria-label="At a glance">{items}</ul><ul class="checks">{said}</ul>'


def figure(drawn: str, alt: str, caption: str = "") -> str:
    """An SVG, with words for those who do not see it."""
    drawn = drawn.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
    return f"<figure>{f'<figcaption>{escape(caption)}</figcaption>' if caption else ''}{drawn}</figure>"


def number_ids(html: str) -> str:
    """Each figure's identifiers under a number of its own: figures with equal parts would share names."""
    numbers = count()
    rename = lambda svg: re.sub(r'( id="|url\(#|href="#)', rf"\g<1>f{next(numbers)}-", svg)
    return "".join(part if i % 2 == 0 else rename(part) for i, part in enumerate(re.split(r"(<svg.*?</svg>)", html)))


def table(head: Iterable[str], rows: Iterable[Iterable[str]], caption: str, kind: str = "numbers") -> str:
    """A table whose first column names its rows."""
    first, *others = head
    cells = "".join(f'<th scope="col">{escape(h)}</th>' for h in others)
    corner = f'<th scope="col">{escape(first)}</th>' if first else "<td></td>"
    body = ""
    for name, *values in rows:
        tds = "".join(f"<td>{escape(v)}</td>" for v in values)
        body += f'<tr><th scope="row">{escape(name)}</th>{tds}</tr>'
    return (
        f'<div class="scroll"><table class="{kind}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{corner}{cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts with dotted names."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def plural(n: int, what: str) -> str:
    """``1 draw``, ``2,000 draws``."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def value(of: Any) -> str:
    """A setting as text; a float by its first digits."""
    return f"{of:.5g}" if isinstance(of, float) else str(of)


def number(value: float) -> str:
    """Three digits, or all of a large number's; a dash for none."""
    if not np.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if not np.isfinite(seconds):
        return "–"
    for unit, size in (("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if seconds >= (1 if size < 60 else 2) * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs" if seconds else "0 s"
