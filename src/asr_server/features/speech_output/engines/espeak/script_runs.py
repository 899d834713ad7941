"""Divides a sentence into runs of one script each, with the language in which eSpeak NG speaks each run.

The library can change its language inside a text, but reads files to do so, and the sandbox lets it open none.
"""

from __future__ import annotations

import unicodedata

from asr_server.text import languages

# Each run takes a process of 10 ms, and the engine speaks for nobody else meanwhile.
_MAX_RUNS = 16


def script_runs(text: str, language: str) -> list[tuple[str, str]]:
    """Return the text in order, cut where the script of its letters changes, each part with its language.

    Characters that are no letters belong to the part before them. Letters of a script without a language stay with
    their neighbours, and so do all letters after the `_MAX_RUNS`th change.
    """
    own = languages.letters_of(language)
    runs: list[tuple[str, str]] = []
    for char in text:
        spoken_in = _language(char, language, own) if char.isalpha() else ""
        if not runs:
            runs.append((spoken_in, char))
        elif not spoken_in or runs[-1][0] in ("", spoken_in) or len(runs) == _MAX_RUNS:
            runs[-1] = (runs[-1][0] or spoken_in, runs[-1][1] + char)
        else:
            runs.append((spoken_in, char))
    return [(spoken_in or language, part) for spoken_in, part in runs]


def _language(char: str, language: str, own: frozenset[str]) -> str:
    name = unicodedata.name(unicodedata.normalize("NFKC", char)[0], "").partition(" ")[0]
    return language if name in own else languages.OF_LETTERS.get(name, "")
