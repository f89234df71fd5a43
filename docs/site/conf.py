"""Sphinx's configuration of the site; `build.py` calls Sphinx."""

from __future__ import annotations

import pathlib

import reference
from sphinx.application import Sphinx

import troupe

project = "troupe"
version = release = troupe.__version__
author = "the authors of troupe"
copyright = author

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
nitpicky = False
highlight_language = "text"

# The anchors of headings that the code host makes.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_use_type_comments = False
# A list: as members, those of a named tuple would be described twice.
napoleon_custom_sections = [("Attributes", "params_style")]
python_use_unqualified_type_names = True
# The name of a type may be that of several classes; no link is as good as a wrong one.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = f"troupe {release}"
html_static_path = ["style"]
html_css_files = ["site.css"]
html_search_scorer = str(pathlib.Path(__file__).parent / "style" / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _convert, priority=100)  # Before napoleon.


def _convert(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    lines[:] = reference.as_restructured_text("\n".join(lines)).split("\n")
