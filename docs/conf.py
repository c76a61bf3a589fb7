"""The site: `make docs` writes it into docs/_build/html. The reference is made from the code first."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.docs.reference import write_reference  # noqa: E402
from tests.docs.reference.repository import captioned, relinked  # noqa: E402
from trtcal.errors import __version__  # noqa: E402

project = "trtcal"
author = "The trtcal authors"
copyright = "the trtcal authors"  # noqa: A001  # Sphinx's name
version = release = __version__
language = "en"
smartquotes = False

extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"trtcal {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

linkcheck_timeout = 20
linkcheck_workers = 2
linkcheck_anchors = False


def relink(app, name, source):
    """Let links to files outside docs/ lead to their pages, and name the files that blocks are."""
    page = Path(app.env.doc2path(name))
    source[0] = captioned(relinked(source[0], page, page))


def setup(app):
    """Write the reference before Sphinx looks for pages."""
    app.connect("builder-inited", lambda app: write_reference(Path(app.srcdir) / "reference"))
    app.connect("source-read", relink)
