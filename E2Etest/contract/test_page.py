"""The page's files as they are served: types, caching, and headers that keep a browser to this server."""

import base64
import hashlib
import re
import subprocess

import pytest

from asr_server import web

pytestmark = pytest.mark.demo_server

# The scripts that the pages load. Each contains all the modules that it imports.
SCRIPTS = ("app.js", "caption-page.js", "docs.js")


@pytest.mark.parametrize("suffix", sorted({path.suffix for path in web.files().values()}))
def test_every_file_is_served_with_its_type_and_the_headers(server, suffix):
    """What lies on the disk comes, named as what it is, under a policy of this server alone."""
    listed = server.client.get(f"/web/{web.LIST}").json()
    names = [name for name, path in web.files().items() if path.suffix == suffix]
    names = [name for name in names if suffix != ".js" or name in listed]
    for name in [*names, *([""] if suffix == ".html" else [])]:
        answer = server.client.get(f"/web/{name}" if name else "/")
        assert answer.status_code == 200, name
        if name not in ("", "index.html", "caption-page.html", *SCRIPTS):
            assert answer.content == web.files()[name].read_bytes(), name
        assert answer.headers["content-type"] == web.MEDIA_TYPES[suffix]
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert not re.search("unsafe|https?:", answer.headers["content-security-policy"])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "microphone=(self)" in answer.headers["permissions-policy"]


@pytest.mark.parametrize("name", ["style.css", "app.js", "messages/en.json"])
def test_text_is_compressed_for_who_takes_it(server, name):
    """The same content either way, and one tag for both."""
    plain, packed = (
        server.client.get(f"/web/{name}", headers={"Accept-Encoding": how}) for how in ("identity", "gzip")
    )
    assert ("content-encoding" in plain.headers, packed.headers["content-encoding"]) == (False, "gzip")
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 1.5
    assert packed.content == plain.content
    assert packed.headers["etag"] == plain.headers["etag"]
    assert "Accept-Encoding" in packed.headers["vary"]


def test_the_page_names_its_files_by_version(server):
    """Such an address is kept for ever; one of an older version gets the file of today and is asked for again."""
    index = server.client.get("/").text
    made = re.compile("<style>(?:.*\n)*?</style>\n")
    page = web.files()["index.html"].read_text(encoding="utf-8")
    written = re.sub('<link rel="stylesheet".*\n', "", page)
    written = re.sub(r'(data-model="demo".*) hidden>', r"\1>", written)  # the note about the model of this server
    assert made.sub("", index).replace(f"web/{web.version()}/", "web/") == written
    addresses = re.findall(r'(?:href|src)="(web/[^"]*)"', index)
    for address in addresses:
        answer = server.client.get(f"/{address}")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "max-age=31536000, immutable"), address
    old = server.client.get(f"/web/{'0' * 16}/audio-worklet.js")
    assert (old.content, old.headers["cache-control"]) == (web.files()["audio-worklet.js"].read_bytes(), "no-cache")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_page_asks_for_one_script(server, name, tmp_path):
    """A joined script contains each module once, unchanged except for imports and exports, and Node parses it."""
    joined = server.client.get(f"/web/{name}").text
    assert re.findall(r"^import |\bimport\(|^export (?!const need)", joined, re.MULTILINE) == []
    asked = set(re.findall(r'need\("([\w./-]+)"\)', joined))
    assert asked == set(re.findall(r'^"([\w./-]+)"\(\) {$', joined, re.MULTILINE))
    lines = set(joined.split("\n"))
    for module in (name, *asked):
        written = web.files()[module].read_text(encoding="utf-8").split("\n")
        assert {one for one in written if "import" not in one and not one.startswith("export ")} <= lines, module
    path = tmp_path / "joined.mjs"
    path.write_text(joined, encoding="utf-8")
    subprocess.run(["node", "--check", path], check=True)


def test_no_module_exports_a_variable_that_changes():
    """In a joined script an importer keeps the first value of such a variable."""
    names = [name for name in web.files() if name.endswith(".js")]
    assert [name for name in names if re.search("^export (let|default)", web.files()[name].read_text(), re.M)] == []


@pytest.mark.parametrize(("path", "page"), [("/", "index.html"), ("/captions", "caption-page.html")])
def test_the_styles_are_inside_the_page(server, path, page):
    """In the order of the file, with the addresses of the typeface, and the policy allows these and no others."""
    answer = server.client.get(path)
    (styles,) = re.findall("<style>(.*?)</style>", answer.text, re.DOTALL)
    names = re.findall('<link rel="stylesheet" href="web/(.*)">', web.files()[page].read_text(encoding="utf-8"))
    written = "".join(web.files()[name].read_text(encoding="utf-8") for name in names)
    assert styles.replace(f'url("web/{web.version()}/', 'url("') == written
    digest = base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}';" in answer.headers["content-security-policy"]


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


@pytest.mark.parametrize("path", ["/", "/web/app.js"])
def test_an_unchanged_file_is_not_sent_again(server, path):
    """The browser asks each time, and gets 304 and no body."""
    first = server.client.get(path)
    assert first.headers["cache-control"] == "no-cache"
    again = server.client.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    other = server.client.get(path, headers={"If-None-Match": '"another"'})
    assert (other.status_code, other.content) == (200, first.content)
    head = server.client.head(path)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", first.headers["etag"])


def test_nothing_else_is_served(server):
    """Neither the tests nor the modules beside the files, nor what lies elsewhere."""
    names = ["__init__.py", "package.json", "replay-buffer_test.mjs", "..%2fserver.py", "nothing.js", ""]
    names += [f"{web.version()}/", f"{web.version()}/package.json"]
    assert [name for name in names if server.client.get(f"/web/{name}").status_code != 404] == []
