"""The web pages `/`, `/docs`, `/captions` and the files of `web/`. They may load only from this server."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from asr_server import web
from asr_server.core.idle import trim_heap

router = APIRouter()

# Recordings are played from memory (blob:); everything else comes from this server or not at all.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src {styles}",
        "img-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "connect-src 'self'",
        "media-src 'self' blob:",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=(), display-capture=()",
}
# Browsers request the page again on every load. The page names its files by version, so the files never change.
_AGAIN = "no-cache"
_FOR_EVER = "max-age=31536000, immutable"
# The service worker lies below the page. A header with the folder above lets it serve the page anyway.
_SERVICE_WORKER = "service-worker.js"
_ABOVE = "../../"
_FIRST_SCRIPTS = ("app.js", "caption-page.js", "docs.js")
_IMPORT = re.compile(rb'^import (.+) from "\./([\w./-]+)";$', re.MULTILINE)
_DECLARED = re.compile(rb"^export (?=(?:async )?(?:function\*?|class|const|var) (\w+))", re.MULTILINE)
_LISTED = re.compile(rb"^export { (.+) };$", re.MULTILINE)
_LOADER = b"""\
const functions = {
FUNCTIONS
};
const made = {};
export const need = (name) => (made[name] ??= functions[name]());
"""
_STYLESHEET = re.compile(rb'<link rel="stylesheet" href="web/([\w.-]+)">\n')


# Types of files that are not compressed already.
_TEXT = frozenset({".html", ".css", ".js", ".json", ".svg", ".webmanifest"})


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the page."""

    content: bytes
    compressed: bytes  # the content with gzip, empty if that would not be smaller
    media_type: str
    etag: str


@cache
def _files() -> dict[str, _File]:
    """Return all files that are served, read once: together they are smaller than one recording."""
    read = {name: path.read_bytes() for name, path in web.files().items()}
    folder = f"web/{web.version()}/".encode()
    parts = {name: _imported(read, name) for name in _FIRST_SCRIPTS}
    inside = {part for names in parts.values() for part in names}
    made = {name: _versioned(_with_styles(read, name, folder)) for name in (web.INDEX, web.CAPTIONS)}
    made |= {name: _joined(read, name, parts[name]) for name in _FIRST_SCRIPTS}
    found = {name: _file(one, Path(name).suffix) for name, one in (read | made).items() if name not in inside}
    kept = {name for name in found if Path(name).suffix not in (".html", ".css")} - {_SERVICE_WORKER}
    trim_heap()  # frees the scripts' parts, which are joined now
    return found | {web.LIST: _file(json.dumps(sorted(kept)).encode(), ".json")}


@cache
def _docs() -> _File:
    return _file(_versioned(_files()[web.DOCS].content), ".html")


def _versioned(page: bytes) -> bytes:
    return re.sub(rb'(href|src)="web/', rb'\1="web/%b/' % web.version().encode(), page)


@cache
def _index(model_id: str) -> _File:
    """Return the page with the note about this model shown, if there is one: the script would only show it later."""
    note = re.compile(rb'(<p [^>]*data-model="%b"[^>]*) hidden>' % re.escape(model_id.encode()))
    return _file(note.sub(rb"\1>", _files()[web.INDEX].content), ".html")


def _with_styles(files: dict[str, bytes], page: str, folder: bytes) -> bytes:
    """Return the page with its stylesheets inside, so that it is drawn without waiting for another file."""
    index = files[page]
    styles = b"".join(files[name.decode()] for name in _STYLESHEET.findall(index))
    styles = styles.replace(b'url("vendor/', b'url("' + folder + b"vendor/")
    return _STYLESHEET.sub(b"", index).replace(b"</head>", b"<style>" + styles + b"</style>\n</head>")


@cache
def _policy(page: str) -> str:
    """Return the content security policy, which allows the styles inside this page by their hashes."""
    styles = re.findall(rb"<style>(.*?)</style>", _files()[page].content, re.DOTALL)
    hashes = (base64.b64encode(hashlib.sha256(one).digest()).decode() for one in styles)
    return _POLICY.format(styles=" ".join(f"'sha256-{one}'" for one in hashes))


def _imported(files: dict[str, bytes], first: str) -> list[str]:
    """Return the scripts that the first one imports, at once or later, directly or through others."""
    names = [first]
    for name in names:
        imports = re.findall(rb'(?: from |import\()"\./([\w./-]+)"', files[name])
        names += [found for one in imports if (found := one.decode()) not in names]
    return names[1:]


def _joined(files: dict[str, bytes], name: str, imported: list[str]) -> bytes:
    """Return a script and the modules that it imports as one script, which a browser fetches with one request.

    Each module becomes a function that is called when it is first imported. Imports become constants, so a module
    cannot export a variable that changes.
    """
    functions = b",\n".join(b'"%b"() {\n%b}' % (one.encode(), _function(files[one])) for one in imported)
    return _LOADER.replace(b"FUNCTIONS", functions) + _with_constants(files[name])


def _function(module: bytes) -> bytes:
    listed = b", ".join(_LISTED.findall(module)).split(b", ")
    exported = [*_DECLARED.findall(module), *(re.sub(rb"(\w+) as (\w+)", rb"\2: \1", one) for one in listed if one)]
    body = _LISTED.sub(b"", _DECLARED.sub(b"", _with_constants(module)))
    return b"%breturn { %b };\n" % (body, b", ".join(exported))


def _with_constants(script: bytes) -> bytes:
    """Return the script with constants in place of its imports."""

    def constant(found: re.Match[bytes]) -> bytes:
        names = found[1].replace(b"* as ", b"").replace(b" as ", b": ")
        return b'const %b = need("%b");' % (names, found[2])

    return re.sub(rb'\bimport\("\./([\w./-]+)"\)', rb'need("\1")', _IMPORT.sub(constant, script))


def _file(content: bytes, suffix: str) -> _File:
    compressed = gzip.compress(content, mtime=0) if suffix in _TEXT else b""
    # HTTP requires a weak tag, since both forms have it: it stands for the same file, not for the same bytes.
    return _File(content, compressed, web.MEDIA_TYPES[suffix], f'W/"{hashlib.sha256(content).hexdigest()[:32]}"')


@router.options("/", include_in_schema=False)
async def options() -> Response:
    """Answer load balancers that ask with this method."""
    return Response(status_code=204, headers={"Allow": "GET, HEAD, OPTIONS"})


@router.get("/", include_in_schema=False)
async def index(request: Request) -> Response:
    return _answer(request, _index(request.app.state.model_id), _AGAIN)


@router.get(web.DOCS_PATH, include_in_schema=False)
async def docs(request: Request) -> Response:
    """Return the page of the API. The schema that it shows needs a key where there are keys."""
    answer = _answer(request, _docs(), _AGAIN)
    del answer.headers["Content-Security-Policy"]  # `Edge` sets another one for this page
    return answer


@router.get(web.CAPTIONS_PATH, include_in_schema=False)
async def captions(request: Request) -> Response:
    """Return the page of captions of a shared session. The token is in its fragment, which does not come here."""
    return _answer(request, _files()[web.CAPTIONS], _AGAIN, web.CAPTIONS)


@router.get("/web/{address:path}", include_in_schema=False)
async def file(request: Request, address: str) -> Response:
    """Return a script, a style, a message file, the typeface or an icon."""
    name = web.name_in(address)
    if name not in _files():
        raise HTTPException(404)
    current = address.startswith(f"{web.version()}/")
    answer = _answer(request, _files()[name], _FOR_EVER if current else _AGAIN)
    if name == _SERVICE_WORKER:
        answer.headers["Service-Worker-Allowed"] = _ABOVE
    return answer


def _answer(request: Request, found: _File, cache_control: str, page: str = web.INDEX) -> Response:
    """Return the response with this file, under the policy of this page."""
    headers = {
        **_HEADERS,
        "Content-Security-Policy": _policy(page),
        "ETag": found.etag,
        "Cache-Control": cache_control,
        "Vary": "Accept-Encoding",
    }
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if found.compressed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.compressed, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(found.content, media_type=found.media_type, headers=headers)
