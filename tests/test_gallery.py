"""The gallery: every script runs and says what it should, and its page and its notebook are whole."""

import json
import re

import pytest
from docs import gallery
from matplotlib.figure import Figure

from tests.test_docs import internal, reference, used

QUICK = ("linear_regression", "poisson_regression")
SAID = {  # something that each prints, if it works
    "linear_regression": r"a metre away: -8\.\d to -7\.\d",
    "logistic_regression": r"between prediction and share: 0\.0\d",
    "poisson_regression": r"zeros: 0\.\d+ of the data",
    "hierarchical": r"posterior medians: off by 1\.",
    "time_series": r"memory: \[ ?1\.[12]",
    "robust_regression": r"of the broken rows are found",
    "network": r"width of the interval",
    "ratings": r"RMSE 0\.\d+ on held-out ratings; the mean rating alone has 1\.",
    "speech": r"SI-SDR before",
    "numpyro_model": r"slope\[0\] ",
    "streaming": r"minibatches of \d+ rows",
    "cluster": r"largest relative difference of a draw: \d\.\de-0[3-9]",
}
JUDGED = SAID.keys() - {"ratings", "speech", "cluster"}  # runs that have a verdict


def test_every_script_is_in_the_gallery():
    assert {p.stem for p in gallery.SOURCES.glob("*.py")} == set(gallery.ORDER) == SAID.keys()
    assert len(gallery.ORDER) == 12


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in gallery.ORDER])
def test_an_example_runs(name):
    done, figure = gallery.run(name)
    printed = "".join(cell.printed for cell in done)
    assert re.search(SAID[name], printed), printed
    if name in JUDGED:
        assert re.search("^(good|usable): ", printed, re.MULTILINE), printed
    assert isinstance(figure, Figure)
    assert figure.axes


@pytest.mark.parametrize("name", gallery.ORDER)
def test_an_example_is_short_and_uses_what_is_documented(name):
    first, *rest = gallery.cells((gallery.SOURCES / f"{name}.py").read_text())
    assert first.source.startswith("# ")
    assert 20 < len(first.source.split()) < 90
    code = "\n".join(c.source for c in rest if c.code)
    assert len(code.splitlines()) < 70
    assert not {n for n in used(code) - set(reference()) if not internal(n) and n.startswith("hamcmc.")}
    for link in re.findall(r"\]\(\.\./([^)#]+)", first.source):
        assert (gallery.DOCS / link).exists()


def test_a_page_begins_with_its_plot_and_a_notebook_is_valid():
    done = gallery.cells("# %% [markdown]\n# # A title\n#\n# Words.\n\n# %%\nx = 1\nprint(x)\n\n# %%\nf = Figure()\n")
    done[1] = done[1]._replace(printed="1\n")
    text = gallery.page("name", done)
    title, plot, words, download, code, output = text.split("\n\n")[:6]
    assert (title, words) == ("# A title", "Words.")
    assert plot.startswith("![") and plot.endswith("(../_figures/gallery-name.png)")  # noqa: PT018
    assert 'href="name.ipynb"' in download
    assert (code, output) == ("```python\nx = 1\nprint(x)\n```", "```text\n1\n```")
    assert ":class: dropdown" in text
    book = json.loads(json.dumps(gallery.notebook(done)))
    assert (book["nbformat"], [c["cell_type"] for c in book["cells"]]) == (4, ["markdown", "code", "code"])
    assert book["cells"][1]["outputs"][0]["text"] == ["1\n"]
    assert "".join(book["cells"][2]["source"]).endswith("figure")
    with pytest.raises(ValueError, match="# %%"):
        gallery.cells("x = 1\n")
