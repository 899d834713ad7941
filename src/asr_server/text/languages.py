"""Language names and codes: from the spellings of callers to the names of the model, and back."""

from __future__ import annotations

import re

from asr_server.core.errors import InvalidLanguage, UnsupportedLanguage

# The 30 languages of Qwen3-ASR by the names it uses, with their ISO 639 codes (Cantonese has no two-letter one).
_CODES = {
    "Chinese": "zh",
    "English": "en",
    "Cantonese": "yue",
    "Arabic": "ar",
    "German": "de",
    "French": "fr",
    "Spanish": "es",
    "Portuguese": "pt",
    "Indonesian": "id",
    "Italian": "it",
    "Korean": "ko",
    "Russian": "ru",
    "Thai": "th",
    "Vietnamese": "vi",
    "Japanese": "ja",
    "Turkish": "tr",
    "Hindi": "hi",
    "Malay": "ms",
    "Dutch": "nl",
    "Swedish": "sv",
    "Danish": "da",
    "Finnish": "fi",
    "Polish": "pl",
    "Czech": "cs",
    "Filipino": "fil",
    "Persian": "fa",
    "Greek": "el",
    "Romanian": "ro",
    "Hungarian": "hu",
    "Macedonian": "mk",
}
_NAMES = {code: name for name, code in _CODES.items()}
_ALIASES = {
    "mandarin": "Chinese",
    "cmn": "Chinese",
    "cn": "Chinese",
    "tl": "Filipino",
    "tagalog": "Filipino",
    "farsi": "Persian",
    "castilian": "Spanish",
    "flemish": "Dutch",
    "moldavian": "Romanian",
    "moldovan": "Romanian",
}
_SHAPE = re.compile(r"[a-z]{2,3}([-_][a-z0-9]{1,8})*|[a-z]{4,20}( [a-z]{2,20})?", re.IGNORECASE)


def model_languages() -> tuple[str, ...]:
    """Return the names of all languages of the model, in its own spelling."""
    return tuple(_CODES)


def normalize(value: str | None) -> str | None:
    """Return the model's name of a language given as ISO code, locale (`en-US`), English name, `auto` or nothing.

    None: the model detects the language. Raises `InvalidLanguage` for a value without the form of a language, and
    `UnsupportedLanguage` for a language that the model does not know.
    """
    text = (value or "").strip()
    if not text or text.lower() == "auto":
        return None
    if not _SHAPE.fullmatch(text):
        raise InvalidLanguage(
            "The language must be an ISO 639-1 code such as 'en', a locale such as 'en-US', or an English name.",
            param="language",
        )
    name = _lookup(text.lower().replace("_", "-"))
    if name is None:
        raise UnsupportedLanguage(
            f"The model does not know this language. It knows: {', '.join(sorted(_CODES.values()))}.",
            param="language",
        )
    return name


def _lookup(text: str) -> str | None:
    primary, _, rest = text.partition("-")
    if primary == "zh" and not {"hk", "yue"}.isdisjoint(rest.split("-")):
        return "Cantonese"
    return _NAMES.get(primary) or _ALIASES.get(primary) or (text.title() if text.title() in _CODES else None)


def code(name: str) -> str:
    """Return the ISO code of a language by the model's name; "" for an unknown name."""
    return _CODES.get(name, "")
