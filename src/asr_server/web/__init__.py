"""The page for people: where its files lie and which may be served. Serves nothing itself.

Plain HTML, CSS and ES modules, used as they are: there is no build step. Tests of the scripts (`*_test.mjs`) lie beside
them and are not served.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent

# The ending decides what a browser is told that a file is; what is not listed here is not served.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def files() -> dict[str, Path]:
    """Every file of the page by its name."""
    return {path.name: path for path in sorted(_FOLDER.iterdir()) if path.suffix in MEDIA_TYPES}
