"""The page for people: where its files lie and which may be served. Serves nothing itself.

Plain HTML, CSS and ES modules, used as they are: there is no build step. Tests of the scripts (`*_test.mjs`) lie beside
them and are not served.
"""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent
_SUBFOLDERS = ("messages", "vendor")

# The ending decides what a browser is told that a file is; what is not listed here is not served.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
# For Node, which runs the scripts' tests.
_NOT_SERVED = "package.json"


def files() -> dict[str, Path]:
    """Every file of the page by its name, which for those of subfolders is `messages/en.json`."""
    folders = (_FOLDER, *(_FOLDER / name for name in _SUBFOLDERS))
    found = (path for folder in folders for path in sorted(folder.iterdir()))
    return {
        path.relative_to(_FOLDER).as_posix(): path
        for path in found
        if path.suffix in MEDIA_TYPES and path.name != _NOT_SERVED
    }
