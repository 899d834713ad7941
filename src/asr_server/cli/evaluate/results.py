"""The results of an evaluation in the form of the result file, and the report as text and as an HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from asr_server import __version__
from asr_server.cli.evaluate import scoring
from asr_server.cli.evaluate.references import Reference, SystemAnswer
from asr_server.cli.evaluate.scoring import KINDS, LEAST_UNITS, Bounds, score
from asr_server.cli.failure import UsageError, shown
from asr_server.cli.progress import clock_text
from asr_server.text.words import measure

_VERSION = 1
MOST_ON_PAGE = 200  # recordings, and groups of each kind: a browser has to lay them all out
# Word and character error rates.
_HEADS = ("", "recordings", "words", "WER", "95 %", "wrong", "missing", "extra", "CER", "95 %")

Fields = dict[str, Any]


class Other(NamedTuple):
    """A system to compare with."""

    title: str
    texts: Mapping[tuple[str, str], str]  # by the name of the recording and the text that was said


def previous(file: Path) -> Other:
    """Return the texts of a result file. Raises `UsageError`."""
    try:
        content = json.loads(file.read_bytes())
        if content["version"] != _VERSION:
            raise UsageError(f"{shown(str(file))} is of another version of asr-server.")
        texts = {(one["name"], one["reference"]): str(one["text"]) for one in content["recordings"]}
        return Other(f"{title(content['system'])} ({file.name})", texts)
    except OSError as error:
        raise UsageError(f"{shown(str(file))} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{shown(str(file))} is not a result of asr-server evaluate --json.") from None


def results(
    system: Mapping[str, Any],
    answers: Iterable[tuple[Reference, SystemAnswer]],
    failed: Mapping[str, str],
    *,
    normalise: bool,
    other: Other | None,
) -> Fields:
    """Return all results, the worst recordings first. `failed` has error codes by recording."""
    recordings = [_recording(reference, answer, normalise, other) for reference, answer in answers]
    # Extra words for a reference without words count as worse than any error rate.
    recordings.sort(key=lambda one: (-one["words"]["errors"] / (one["words"]["units"] or 1e-9), one["name"]))
    return {
        "version": _VERSION,
        "asr_server": __version__,
        "system": system,
        "normalised": normalise,
        "drawn": "speakers" if scoring.draws_speakers([one["speaker"] for one in recordings]) else "recordings",
        "total": _figures(recordings),
        "languages": _groups(recordings, "language"),
        "speakers": _groups(recordings, "speaker"),
        "comparison": _comparison(recordings, other.title) if other else None,
        "failed": failed,
        "recordings": recordings,
    }


def as_json(found: Fields) -> bytes:
    """Return the content of the result file, which keeps only the passages with errors."""
    recordings = [{key: value for key, value in one.items() if key != "passages"} for one in found["recordings"]]
    content = json.dumps({**found, "recordings": recordings}, ensure_ascii=False, indent=1)
    return content.encode(errors="backslashreplace")  # bytes of file names that are not UTF-8 become JSON escapes


def _recording(reference: Reference, answer: SystemAnswer, normalise: bool, other: Other | None) -> Fields:
    language = reference.language or answer.language
    fields = {
        "name": reference.name,
        "path": str(reference.source.path),
        "language": scoring.language_name(language),
        "speaker": reference.speaker,
        "duration_s": answer.duration_s,
        "reference": reference.text,
        "text": answer.text,
        **score(reference.text, answer.text, language, normalise=normalise, timed=answer.words),
    }
    if other and (text := other.texts.get((reference.name, reference.text))) is not None:
        there = score(reference.text, text, language, normalise=normalise)
        fields |= {"compared_text": text, "compared_errors": there["words"]["errors"]}
    return fields


def _figures(members: Sequence[Fields]) -> Fields:
    """Return the combined figures of some recordings."""
    found: Fields = {"recordings": len(members)}
    for unit in ("words", "characters"):
        total = scoring.count(*(sum(one[unit][kind] for one in members) for kind in ("units", *KINDS)))
        found[unit] = total | {"interval": _interval(members, [one[unit]["errors"] for one in members], unit)}
    return found


def _interval(members: Sequence[Fields], errors: Sequence[int], unit: str) -> Bounds | None:
    return scoring.interval(errors, [one[unit]["units"] for one in members], [one["speaker"] for one in members])


def _groups(recordings: Iterable[Fields], key: str) -> dict[str, Fields]:
    """Return the figures of each group, the worst first; none if there is only one."""
    members = defaultdict[str, list[Fields]](list)
    for one in recordings:
        members[one[key] or "not known"].append(one)
    figures = {name: _figures(ones) for name, ones in sorted(members.items())} if len(members) > 1 else {}
    return dict(sorted(figures.items(), key=lambda group: -(group[1]["words"]["rate"] or 0)))


def _comparison(recordings: Sequence[Fields], other: str) -> Fields:
    """Return the word errors of both systems on the same recordings, and whether one is better."""
    both = [one for one in recordings if "compared_errors" in one]
    words, here = (sum(one["words"][count] for one in both) for count in ("units", "errors"))
    there = sum(one["compared_errors"] for one in both)
    bounds = _interval(both, [one["words"]["errors"] - one["compared_errors"] for one in both], "words")
    difference = (here - there) / (words or 1)
    return {
        "title": other,
        "recordings": len(both),
        "words": words,
        "errors": here,
        "other_errors": there,
        "difference": difference,
        "interval": bounds,
        "verdict": _verdict(difference, bounds),
    }


def _verdict(difference: float, bounds: Bounds | None) -> str:
    if bounds is None:
        reason = f"fewer than {LEAST_UNITS} recordings, or the same difference in each"
        return f"Whether one is better cannot be told: {reason}."
    points, (low, high) = f"{abs(100 * difference):.2f} points", bounds
    between = f"95 % interval {100 * low:+.2f} to {100 * high:+.2f}"
    if low <= 0 <= high:
        return f"The difference of {points} cannot be told from chance ({between})."
    which = "This one is better" if high < 0 else "The other is better"
    return f"{which} by {points}, which is more than chance ({between})."


def title(system: Mapping[str, Any]) -> str:
    return f"{system['server']}, model {system['model']}" if system["model"] else str(system["server"])


def notes(found: Fields) -> Iterator[str]:
    """Yield a sentence for each fact that a reader must know about the figures."""
    recordings = found["recordings"]
    yield f"{title(found['system'])}: {clock_text(sum(one['duration_s'] for one in recordings))} of audio."
    if not found["normalised"]:
        yield "Texts are compared as they are, with case and punctuation."
    if found["failed"]:
        yield f"{len(found['failed'])} recordings failed and are not counted."
    if wordless := sum(not one["words"]["units"] for one in recordings):
        yield f"{wordless} references have no words; what was written there counts as extra words."
    if found["drawn"] == "speakers":
        yield "Intervals are for other speakers and recordings like these."
    elif len(recordings) >= LEAST_UNITS:
        people = f"for other speakers, state those of at least {LEAST_UNITS}"
        yield f"Intervals are for other recordings of the same speakers; {people}."


def compared(found: Fields) -> Iterator[str]:
    if both := found["comparison"]:
        left = len(found["recordings"]) - both["recordings"]
        more = f"; {left} are not in both, or have another text there" if left else ""
        yield f"Compared with {both['title']} on {both['recordings']:,} recordings{more}:"
        if both["words"]:
            here, there = (100 * both[errors] / both["words"] for errors in ("errors", "other_errors"))
            yield f"{here:.1f} % word errors here, {there:.1f} % there."
        yield both["verdict"]


def table(found: Fields, most: int) -> Iterator[Sequence[str]]:
    """Yield the rows of figures, with at most `most` groups of each kind."""
    yield _HEADS
    yield _row("all", found["total"])
    for kind in ("languages", "speakers"):
        groups = list(found[kind].items())
        yield from ([f"by {kind[:-1]}"] for _ in groups[:1])
        yield from (_row(name, figures) for name, figures in groups[:most])
        if len(groups) > most:
            yield [f"and {len(groups) - most} more"]


def _row(name: str, figures: Fields) -> list[str]:
    words, characters = figures["words"], figures["characters"]
    kinds = (f"{words[kind]:,}" for kind in KINDS)
    counts = f"{figures['recordings']:,}", f"{words['units']:,}"
    return [name, *counts, rate(words), _bounds(words), *kinds, rate(characters), _bounds(characters)]


def _bounds(count: Fields) -> str:
    return " to ".join(f"{100 * bound:.1f}" for bound in count["interval"] or ()) or "-"


def rate(count: Fields) -> str:
    return "-" if count["rate"] is None else f"{100 * count['rate']:.1f} %"


def report(found: Fields, worst: int) -> Iterator[str]:
    """Yield the lines of the report, with the `worst` worst recordings."""
    yield from map(shown, notes(found))
    yield from ("", *_aligned(list(table(found, 20))))  # the result file has all groups
    if found["comparison"]:
        yield from ("", *map(shown, compared(found)))
    if wrong := [(one["name"], one["words"]) for one in found["recordings"] if one["errors"]][:worst]:
        rows = [[name, rate(words), f"{words['errors']} in {words['units']}"] for name, words in wrong]
        yield from ("", "worst recordings", *_aligned(rows))


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows with aligned columns: names to the left, numbers to the right. Rows of one cell are headings."""
    texts = [[shown(cell) for cell in row] for row in rows]
    columns = zip(*(row for row in texts if len(row) > 1), strict=True)
    widths = [max(measure(cell).columns for cell in column) for column in columns]
    for name, *cells in texts:
        spaces = [" " * (width - measure(cell).columns) for width, cell in zip(widths, (name, *cells), strict=False)]
        yield "  ".join([name + spaces[0], *map("".join, zip(spaces[1:], cells, strict=True))]).rstrip()


def page(found: Fields, folder: Path) -> bytes:
    """Return an HTML page, to be stored in `folder`, that plays the recordings at the place of each error.

    The page refers to the recordings by paths relative to `folder`. It holds the results as data, which its script
    shows as text, and its content security policy allows no other script.
    """
    wrong = [one for one in found["recordings"] if one["errors"]]
    audio = [quote(os.fsencode(os.path.relpath(one["path"], folder))) for one in wrong]
    data = {
        "title": f"Word errors: {title(found['system'])}",
        "notes": list(notes(found)),
        "table": list(table(found, MOST_ON_PAGE)),
        "comparison": list(compared(found)),
        "wrong": len(wrong),
        "recordings": [
            one | {"rate": rate(one["words"]), "audio": address}
            for one, address in zip(wrong[:MOST_ON_PAGE], audio, strict=False)
        ],
    }
    content = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    script = content.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # With "<" escaped, no text can end the element that holds the data.
    return content.replace("SCRIPT_HASH", digest).replace("RESULTS", json.dumps(data).replace("<", r"\u003c")).encode()
