"""The documentation site: ``make docs`` builds it into docs/_build/html, with warnings as errors.

A page loads nothing from the network. Docutils writes formulas as MathML; their font comes with ziamath.
"""

import re
import unicodedata
from pathlib import Path

import typer
import ziamath
from docutils import nodes
from docutils.utils.math import MathError, pick_math_environment, unichar2tex
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging
from sphinx.util.osutil import relative_uri
from typer.cli import get_docs_for_click

import hamcmc
from hamcmc.cli.app import app as program

project = "hamcmc"
author = "the hamcmc authors"
copyright = author
release = version = hamcmc.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build", "_extra"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # links to headings have the same form as on GitHub

highlight_language = "none"  # for indented blocks: shell sessions, formulas, layouts
default_role = "code"  # docstrings write a name as `name`
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"PyTree": "PyTree", "Facts": "Facts", "Record": "Record", "ArrayLike": "ArrayLike"}
maximum_signature_line_length = 80  # longer ones have a line for each argument
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
nitpicky = True  # every reference in a docstring must resolve, except those to other packages
nitpick_ignore_regex = [
    ("py:class", "'.*'"),  # shapes in annotations
    (
        "py:.*",
        r"(collections|jax|numpy|arviz|xarray|pathlib|os|typing|matplotlib|polars|jaxlib|jaxtyping|scipy|pd)\..*",
    ),
    # Types in signatures that users never make themselves, and names that are imported for type checkers only.
    ("py:class", r"hamcmc\.(store\.(result|recorder)|diagnostics\.(fields|mixing)|target\.(newton|estimators))\..*"),
    ("py:class", r"hamcmc\.(stable\.chains|speech\.model|samplers\.alternating)\..*"),
    ("py:class", "SamplingAlgorithm|InferenceData|Demo|Reproduction|Model"),  # the last is PyMC's
]

html_theme = "furo"
html_title = f"hamcmc {version}"
html_static_path = ["_static", str(Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf")]
html_extra_path = ["_extra"]
html_css_files = ["site.css"]
html_show_sphinx = html_show_copyright = html_show_sourcelink = html_copy_source = False
html_math_renderer = "mathml"


POWERS = str.maketrans({"²": "^2", "³": "^3", "⁴": "^4"})
ACCENTS = {"\u0302": r"\hat", "\u0303": r"\tilde", "\u0304": r"\bar"}  # combining characters, as in θ̂
ACCENTED = r"(\\(?:hat|tilde|bar)\s*(?:\{[^{}]*\}|\\?\w+?(?![a-z])))"


def mathml(translator, node: nodes.Element, as_block: bool) -> None:
    """Write a formula as MathML. A formula that docutils cannot parse is a warning, and thus fails the build."""
    source = node.astext()
    if as_block and "align" in pick_math_environment(source):
        source = rf"\begin{{aligned}}{source}\end{{aligned}}"
    source = unicodedata.normalize("NFD", source).translate(POWERS)
    source = re.sub("(.)([\u0302\u0303\u0304])", lambda m: f"{ACCENTS[m[2]]}{{{m[1]}}}", source)
    source = re.sub(ACCENTED + r"\s*([_^])", r"\1{}\2", source)  # otherwise docutils sets the index below the letter
    try:
        formula = tex2mathml(source.translate(unichar2tex.uni2tex_table), as_block=as_block)
        formula = re.sub(r"<mo>&ApplyFunction;</mo>(?=\s*<m[^o])", '<mspace width="0.17em"/>', formula)  # as in log p
        formula = formula.replace("<mo>‖", '<mo form="postfix" stretchy="false">‖')
        formula = formula.replace('<mo class="mathopen">‖', '<mo form="prefix" stretchy="false">‖')
    except MathError as error:
        logging.getLogger(__name__).warning("formula %r: %s", source, error, location=node)
        formula = translator.encode(source)
    translator.body.append(f'<div class="math">{formula}</div>' if as_block else formula)
    raise nodes.SkipNode


def skip(app, what, name, value, skipped, options) -> bool | None:
    """Skip 'Alias for field number …' of NamedTuples, and the methods that scikit-learn adds to every estimator."""
    return True if type(value).__name__ in ("_tuplegetter", "RequestMethod") or name.endswith("_request") else None


def commands(app) -> None:
    """Write the reference of the command line, from the commands themselves."""
    command = typer.main.get_command(program)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="hamcmc")
    text = re.sub(r"\[/?bold\]", "**", text).replace("# `hamcmc`", "# The command line", 1)
    Path(app.srcdir, "commands.md").write_text(text)


def linked(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Link names such as hamcmc.sample in samples to the reference."""
    objects = app.env.get_domain("py").objects
    here = app.builder.get_target_uri(pagename)

    def link(match: re.Match) -> str:
        found = objects.get(re.sub("<[^>]+>", "", match[0]))
        if found is None:
            return match[0]
        target = relative_uri(here, app.builder.get_target_uri(found.docname)) + f"#{found.node_id}"
        return f'<a class="sample" href="{target}">{match[0]}</a>'

    def sample(match: re.Match) -> str:
        return re.sub(NAME, link, match[0])

    if "body" in context:
        context["body"] = re.sub(SAMPLE, sample, context["body"], flags=re.DOTALL)


SAMPLE = r'<div class="highlight-python.*?</pre>'  # as Pygments writes it
NAME = r'<span class="n">hamcmc</span>(?:<span class="o">\.</span><span class="n">\w+</span>)+'


def setup(app) -> None:
    """Register the formulas, the filter and the page of commands with Sphinx."""
    app.connect("builder-inited", commands)
    app.connect("html-page-context", linked)
    app.add_html_math_renderer(
        "mathml",
        (lambda self, node: mathml(self, node, False), None),
        (lambda self, node: mathml(self, node, True), None),
    )
    app.connect("autodoc-skip-member", skip)
