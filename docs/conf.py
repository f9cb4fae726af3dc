"""The site: `make docs` builds it into build/site. Nothing is fetched, neither to build it nor to read it."""

from pygments.lexers.data import JsonLexer
from sphinx.application import Sphinx

project = "blockaudit"
html_title = "blockaudit"
extensions = ["myst_parser"]
# `rules.md#n201-epsilon-mismatch`, as on any forge.
myst_heading_anchors = 4
exclude_patterns = ["generate"]
nitpicky = True
html_theme = "furo"
html_show_sphinx = False
html_show_copyright = False
# `--level` stays as it is typed.
smartquotes = False
html_copy_source = False


def setup(app: Sphinx) -> None:
    """JSON with comments is shown as JSON, whose lexer reads them."""
    app.add_lexer("jsonc", JsonLexer)
