"""The results of an evaluation as one HTML file, which plays the recordings at the place of each error.

The page finds the recordings by their paths from its folder. Names and texts are escaped, and the page's policy runs no
script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from urllib.parse import quote

from asr_server.cli.evaluate.results import MeasuredRecording, Results, rate, title
from asr_server.cli.evaluate.scoring import ComparedPassage
from asr_server.cli.progress import clock_text

# A browser has to lay them all out.
MOST_RECORDINGS = 200
_MOST_GROUPS = 200
# Only the beginning and the end of a passage without errors are shown.
_CONTEXT_CHARS = 120


def render(results: Results, folder: Path) -> bytes:
    """Return the page, to be stored in `folder`."""
    page = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    script = re.search("<script>(.*)</script>", page, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    wrong = [one for one in results.measured if one.errors]
    shown = wrong[:MOST_RECORDINGS]
    filled = Template(page).substitute(
        title=escape(f"Word errors: {title(results.system)}"),
        notes=_paragraphs(results.notes()),
        figures="\n".join(_row(cells) for cells in results.table(_MOST_GROUPS)),
        comparison=_paragraphs(results.compared()),
        shown=f"{len(shown):,} of {len(wrong):,} are shown." if shown != wrong else "",
        recordings="\n".join(_recording(one, folder) for one in shown),
        script_hash=f"sha256-{digest}",
    )
    # A name that UTF-8 cannot encode gets question marks; the address of its recording has its bytes.
    return filled.encode(errors="replace")


def _paragraphs(lines: Iterator[str]) -> str:
    return "\n".join(f"<p>{escape(line)}</p>" for line in lines)


def _row(cells: list[str]) -> str:
    kind = "td" if cells[0] and len(cells) > 1 else "th"
    return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"


def _recording(one: MeasuredRecording, folder: Path) -> str:
    path, words = one.reference.source.path, one.score.words
    assert path is not None, "standard input is not measured"
    address = quote(os.fsencode(os.path.relpath(path, folder)))
    facts = [f"{rate(words)}, {words.errors} in {words.units} words", one.language]
    facts += [one.reference.speaker, f"the other: {one.other.errors}" if one.other else ""]
    name, passages = escape(one.reference.name), " ".join(map(_passage, one.score.passages))
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
    label = escape(f"at {clock_text(passage.start_s)}: said “{passage.said}”, written “{passage.heard}”")
    said = f"<del>{escape(passage.said)}</del>" if passage.said else ""
    heard = f"<ins>{escape(passage.heard)}</ins>" if passage.heard else ""
    content = " ".join(filter(None, (said, heard)))
    return f'<button data-start="{passage.start_s:.2f}" aria-label="{label}" title="{label}">{content}</button>'
