"""The page's files as they are served: types, caching, and headers that keep a browser to this server."""

import re

import pytest

from asr_server import web

pytestmark = pytest.mark.demo_server

# The scripts that the pages load. Each contains all the modules that it imports.
SCRIPTS = ("app.js", "caption-page.js", "docs.js")


def test_every_file_is_served_with_its_type_and_the_headers(server):
    """What lies on the disk comes, named as what it is, under a policy of this server alone."""
    listed = server.client.get(f"/web/{web.LIST}").json()
    files = {f"/web/{name}": path for name, path in web.files().items() if path.suffix != ".js" or name in listed}
    for address, path in {"/": web.files()["index.html"], **files}.items():
        answer = server.client.get(address)
        assert answer.status_code == 200, address
        if path.name not in ("index.html", "caption-page.html", *SCRIPTS):
            assert answer.content == path.read_bytes(), address
        assert answer.headers["content-type"] == web.MEDIA_TYPES[path.suffix]
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert not re.search("unsafe|https?:", answer.headers["content-security-policy"])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "microphone=(self)" in answer.headers["permissions-policy"]


def test_the_page_names_its_files_by_version(server):
    """Such an address is kept for ever; one of an older version gets the file of today and is asked for again."""
    index = server.client.get("/").text
    page = web.files()["index.html"].read_text(encoding="utf-8")
    written = re.sub('<link rel="stylesheet".*\n', "", page)
    written = re.sub(r'(data-model="demo".*) hidden>', r"\1>", written)  # the note about the model of this server
    assert re.sub("<style>(?:.*\n)*?</style>\n", "", index).replace(f"web/{web.version()}/", "web/") == written
    for address in re.findall(r'(?:href|src)="(web/[^"]*)"', index):
        answer = server.client.get(f"/{address}")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "max-age=31536000, immutable"), address
    old = server.client.get(f"/web/{'0' * 16}/audio-worklet.js")
    assert (old.content, old.headers["cache-control"]) == (web.files()["audio-worklet.js"].read_bytes(), "no-cache")


def test_no_module_exports_a_variable_that_changes():
    """In a joined script an importer keeps the first value of such a variable."""
    names = [name for name in web.files() if name.endswith(".js")]
    assert [name for name in names if re.search("^export (let|default)", web.files()[name].read_text(), re.M)] == []


def test_the_service_worker_may_serve_the_page_and_finds_every_file(server):
    """Its place is two folders below the page."""
    base = f"/web/{web.version()}"
    assert server.client.get(f"{base}/service-worker.js").headers["service-worker-allowed"] == "../../"
    listed = server.client.get(f"{base}/files.json").json()
    apart = {name for name in listed if name.endswith(".js")}
    assert apart == {*SCRIPTS, "audio-worklet.js"}
    others = {name for name in web.files() if not name.endswith((".js", ".css", ".html"))}
    assert set(listed) - apart == others
    assert {server.client.get(f"{base}/{name}").status_code for name in listed} == {200}
