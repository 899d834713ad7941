"""The results of an evaluation as a page of HTML, which plays the recordings at the place of each error.

The page is one file, and finds the recordings by their paths from its folder. Names and texts are escaped, and the
page's policy runs no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from urllib.parse import quote

from asr_server.cli.evaluate import report
from asr_server.cli.evaluate.results import MeasuredRecording, Results
from asr_server.cli.evaluate.scoring import ComparedPassage
from asr_server.cli.progress import clock_text

# A browser has to lay them all out.
MOST_RECORDINGS = 200
_MOST_SPEAKERS = 200
# Of a passage without errors, the beginning and the end are shown.
_CONTEXT_CHARS = 120


def render(results: Results, folder: Path) -> bytes:
    """Return the page, to be stored in `folder`."""
    files = resources.files(__package__)
    script = files.joinpath("page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    wrong = [one for one in results.measured if one.errors]
    shown = wrong[:MOST_RECORDINGS]
    page = Template(files.joinpath("page.html").read_text("utf-8")).substitute(
        title=escape(f"Word errors: {results.system.title}"),
        notes=_paragraphs(report.notes(results)),
        figures="\n".join(_rows(results)),
        comparison=_paragraphs(report.comparison(results)),
        shown=f"{len(shown):,} of {len(wrong):,} are shown." if shown != wrong else "",
        recordings="\n".join(_recording(one, folder) for one in shown),
        script_hash=f"sha256-{digest}",
        script=script,
    )
    # A name that UTF-8 cannot encode gets question marks; the address of its recording has its bytes.
    return page.encode(errors="replace")


def _paragraphs(lines: Iterator[str]) -> str:
    return "\n".join(f"<p>{escape(line)}</p>" for line in lines)


def _rows(results: Results) -> Iterator[str]:
    yield "<tr>" + "".join(f"<th>{head}</th>" for head in ("", *report.HEADS)) + "</tr>"
    yield _row(report.figures(results.total))
    for title, groups in (("language", results.languages), ("speaker", results.speakers)):
        if groups:
            yield f"<tr><th>by {title}</th></tr>"
        yield from (_row(report.figures(group)) for group in groups[:_MOST_SPEAKERS])
        if len(groups) > _MOST_SPEAKERS:
            yield f"<tr><td>and {len(groups) - _MOST_SPEAKERS} more</td></tr>"


def _row(cells: list[str]) -> str:
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _recording(one: MeasuredRecording, folder: Path) -> str:
    path = one.reference.source.path
    assert path is not None, "standard input is not measured"
    address = quote(os.fsencode(os.path.relpath(path, folder)))
    words = one.score.words
    facts = [f"{report.rate(words)}, {words.errors} in {words.units} words", one.language]
    facts += [one.reference.speaker, f"the other: {one.other.words.errors}" if one.other else ""]
    passages = " ".join(_passage(passage) for passage in one.score.passages)
    name = escape(one.reference.name)
    return (
        f'<section data-audio="{escape(address)}" data-name="{name}"><h3>{name}</h3>'
        f"<p>{escape(' · '.join(filter(None, facts)))}</p><p>{passages}</p></section>"
    )


def _passage(passage: ComparedPassage) -> str:
    if not passage.is_error:
        text = passage.said
        if len(text) > 2 * _CONTEXT_CHARS:
            text = f"{text[:_CONTEXT_CHARS]} … {text[-_CONTEXT_CHARS:]}"
        return escape(text)
    label = f"at {clock_text(passage.start_s)}: said “{passage.said}”, written “{passage.heard}”"
    said = f"<del>{escape(passage.said)}</del>" if passage.said else ""
    heard = f"<ins>{escape(passage.heard)}</ins>" if passage.heard else ""
    return (
        f'<button data-start="{passage.start_s:.2f}" aria-label="{escape(label)}" title="{escape(label)}">'
        f"{' '.join(filter(None, (said, heard)))}</button>"
    )
