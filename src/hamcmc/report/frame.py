"""What all pages share: the document around the sections, the facts at the top, figures and tables."""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from hamcmc._types import Facts
from hamcmc.store.files import guard_disk, write_atomically

SCRIPTS = ("plots.js", "forest.js", "script.js")  # one script, in this order


def document(
    title: str, top: str, glance: str, sections: Mapping[str, str], version: str, *, live: bool = False
) -> str:
    """Make a self-contained page. It never uses the network, whatever its content is.

    Args:
        title: the heading.
        top: HTML below the heading.
        glance: HTML before the sections.
        sections: the HTML of each section by its name.
        version: the version of hamcmc.
        live: whether the page asks its server for news (``hamcmc watch``).
    """
    links = "".join(f'<a href="#{name.lower()}">{name}</a>' for name in sections)
    body = "".join(f'<section id="{n.lower()}"><h2>{n}</h2>{content}</section>' for n, content in sections.items())
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    style, *parts = (files("hamcmc.report").joinpath(name).read_text() for name in ("style.css", *SCRIPTS))
    script = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script, live)}">'
        f'<title>{escape(title)} – hamcmc report</title><link rel="icon" href="data:,">'
        f"<style>{style}</style></head>\n<body{' data-live=1' if live else ''}>"
        f'<a class="skip" href="#main">To the numbers</a><header><h1>{escape(title)}</h1>{top}'
        f'<nav aria-label="Sections">{links}</nav></header>\n'
        f'<main id="main" tabindex="-1">{glance}<p class="message warn scriptless">Scripts are off, so the '
        f"curves are not drawn. All tables are here.</p>{body}</main>\n"
        f"<footer>Written on {written} by hamcmc {escape(version)}.</footer>"
        f"<script>{script}</script></body></html>\n"
    )


def save(html: str, out: Path) -> Path:
    """Write a page, whole or not at all, and return its path."""
    with guard_disk(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, html.encode())
    return out


def policy(script: str, live: bool) -> str:
    """The content security policy: run this one script, show what is in the page, and if `live`, ask its server."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = ["default-src 'none'", "style-src 'unsafe-inline'", "img-src data:", "media-src data:"]
    allowed += [f"script-src 'sha256-{digest}'", "base-uri 'none'", "form-action 'none'"]
    return "; ".join([*allowed, "connect-src 'self'"] if live else allowed)


def status(word: str, grade: str, where: str = "", message: str = "") -> str:
    """The state of a run: a word with its grade (good, warn, bad or live), the progress, and a message in HTML."""
    said = f'<p class="message {grade}">{message}</p>' if message else ""
    return f'<p><span class="status {grade}">{word}</span> {escape(where)}</p>{said}'


def ongoing(state: str, where: str, run: Path | None) -> str:
    """The status of a run that is not complete: running, stopped, or not finished where that is not known."""
    how = f"<code>hamcmc resume {escape(str(run))}</code>" if run else "resume"
    said = {
        "running": "The run goes on. This page shows the draws up to its last checkpoint.",
        "stopped": f"No process is writing this run. {how} continues it.",
    }
    unknown = f"The run may still be going on; if it was stopped, {how} continues it."
    return status(state, "live" if state == "running" else "warn", where, said.get(state, unknown))


def key(names: Mapping[str, int], what: str) -> str:
    """Buttons that show and hide the series of these names in all plots; the numbers are those of the colours."""
    button = '<button type="button" disabled aria-pressed="true" data-key="{}">{}</button>'
    marked = [button.format(escape(n), _stroke(colour) + escape(n)) for n, colour in names.items()]
    every = button.format("*", "all") if len(names) > 2 else ""
    return f'<div class="key" role="group" aria-label="Show {what} in all plots">{every}{"".join(marked)}</div>'


def _stroke(colour: int) -> str:
    """A piece of a line as the plots draw it. Six colours come again with other dashes (DASHES in plots.js)."""
    dashes = ("", "6 3", "2 2.5", "8 3 2 3")[colour // 6 % 4]
    return (
        f'<svg width="24" height="6" aria-hidden="true"><path d="M0 3h24" stroke="var(--chain-{colour % 6})" '
        f'stroke-width="3" stroke-dasharray="{dashes}"/></svg>'
    )


def facts(of: Facts) -> str:
    """A list of names and values."""
    return "<dl>" + "".join(f"<dt>{k}</dt><dd>{escape(str(v))}</dd>" for k, v in of.items()) + "</dl>"


def at_a_glance(cards: Iterable[tuple[str, str, str, str]], checks: Iterable[str]) -> str:
    """Cards with the most important numbers (name, value, note, and grade: good, warn or none), and what they mean."""
    items = "".join(
        f'<li><span>{name}</span><strong class="{grade}">{value}</strong><span>{escape(note)}</span></li>'
        for name, value, note, grade in cards
    )
    said = "".join(f"<li>{escape(c)}</li>" for c in checks)
    return f'<ul class="cards" aria-label="At a glance">{items}</ul><ul class="checks">{said}</ul>'


def figure(plot: Facts, alt: str, caption: str = "", inside: str = "") -> str:
    """A plot, with a description for those who cannot see it; `inside` is shown where scripts are off."""
    size = "aspect-ratio:1" if "aspect" in plot else f"height:{plot['height']}px"
    title = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    data = escape(json.dumps(plot, separators=(",", ":"), allow_nan=False))
    return (
        f'<figure class="plot" aria-label="{escape(alt)}" data-plot="{data}">{title}{inside}'
        f'<div class="box" style="{size}"></div></figure>'
    )


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
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table class="{kind}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{corner}{cells}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def flatten(tree: Facts, prefix: str = "") -> Iterator[tuple[str, Any]]:
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
    """A setting as text; floats have five digits."""
    return f"{of:.5g}" if isinstance(of, float) else str(of)


def number(value: float) -> str:
    """A number with three digits, a large one with all of them; a dash if it is not finite."""
    if not np.isfinite(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """A time in a suitable unit."""
    if not np.isfinite(seconds):
        return "–"
    for unit, size in (("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if seconds >= (1 if size < 60 else 2) * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs" if seconds else "0 s"


def pace(plays: float, takes: float) -> str:
    """How long work on a recording takes beside its own length, in words that cannot be read backwards."""
    if not (plays > 0 and takes > 0):
        return "–"
    if takes <= plays:
        return f"{_two(plays / takes)} times faster than it plays"
    return f"{_two(takes / plays)} times as long as it plays"


def _two(x: float) -> str:
    """Two digits of a number, or all of a larger one."""
    return f"{x:.2g}" if x < 100 else f"{x:,.0f}"
