"""The colours of reports against WCAG 2.1 AA: 4.5 : 1 for text, 3 : 1 for what plots are drawn with."""

import re
from importlib.resources import files

import pytest

STYLE = files("hamcmc.report").joinpath("style.css").read_text()
LIGHT, DARK = (dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.S))
TEXT = ("ink", "soft", "good", "warn", "bad", "chain-0")  # chain-0 is the colour of links, too
DRAWN = ("faint", *(f"chain-{i}" for i in range(6)))


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG defines it."""
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    shares = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_the_measure():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_have_contrast(palette):
    for ground in ("paper", "panel"):
        found = {name: contrast(palette[name], palette[ground]) for name in (*TEXT, *DRAWN)}
        assert {n for n in TEXT if found[n] < 4.5} == set(), found
        assert {n for n in DRAWN if found[n] < 3} == set(), found


def test_text_has_a_colour_for_text():
    used = set(re.findall(r"(?<![-\w])color: var\(--([\w-]+)\)", STYLE))
    assert used <= {*TEXT, "paper"}  # paper: on a pressed button, whose ground is chain-0
    for palette in (LIGHT, DARK):
        assert contrast(palette["paper"], palette["chain-0"]) >= 4.5
