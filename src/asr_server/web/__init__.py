"""The web page's files: where they lie, and which of them may be served. This module serves nothing itself.

Plain HTML, CSS and ES modules, used as they are: there is no build step. Tests of the scripts (`*_test.mjs`) lie beside
them and are not served.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

INDEX = "index.html"
DOCS = "docs.html"
DOCS_PATH = "/docs"
CAPTIONS = "caption-page.html"
CAPTIONS_PATH = "/captions"
# The list of the files that the service worker keeps for use without the server. It is generated, not stored.
LIST = "files.json"
_FOLDER = Path(__file__).parent
_SUBFOLDERS = ("messages", "vendor")

# Content types by file name suffix. Other files are not served.
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
_VERSION = re.compile(r"[0-9a-f]{16}/")


def files() -> dict[str, Path]:
    """Return every file of the page by its path in this folder, such as `messages/en.json`."""
    folders = (_FOLDER, *(_FOLDER / name for name in _SUBFOLDERS))
    found = (path for folder in folders for path in sorted(folder.iterdir()))
    return {
        path.relative_to(_FOLDER).as_posix(): path
        for path in found
        if path.suffix in MEDIA_TYPES and path.name != _NOT_SERVED
    }


@cache
def version() -> str:
    """Return the common version of all files. Their addresses contain it, so that no old script runs in a new page."""
    digest = hashlib.sha256()
    for name, path in files().items():
        content = path.read_bytes()
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


@cache
def names() -> frozenset[str]:
    return frozenset({*files(), LIST})


def name_in(address: str) -> str:
    """Return the file that `VERSION/NAME` or `NAME` stands for, or "" if there is none. A page that was open before an
    update of the server requests further files with its own version, and gets the present ones."""
    name = _VERSION.sub("", address, count=1) if _VERSION.match(address) else address
    return name if name in names() else ""
