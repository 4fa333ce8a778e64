"""Settings of Sphinx. `python -m scripts.site` prepares the sources and runs it."""

import fedcore
from scripts.site import api
from scripts.site.notation import NotationLexer

project = "fedcore"
author = "the authors of fedcore"
release = version = fedcore.__version__
copyright = "the authors of fedcore, Apache License 2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
highlight_language = "none"
autodoc_typehints = "none"
autodoc_member_order = "bysource"
add_module_names = False
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"fedcore {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]


def setup(app) -> None:
    app.add_lexer("fedcore", NotationLexer)
    app.add_lexer("region", NotationLexer)
    app.add_lexer("schedule", NotationLexer)
    app.add_lexer("counts", NotationLexer)
    app.connect("autodoc-process-docstring", api.process_docstring)
