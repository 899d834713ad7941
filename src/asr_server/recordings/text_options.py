"""The options by which a transcript is written in another way than the model does, as dataclasses and as form fields.

A feature carries them out. A server without it refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, Field

from asr_server.core.errors import UnsupportedValue


class TextFormat(StrEnum):
    """The ways in which numbers are written."""

    MODEL = "model"  # as the model writes them
    WRITTEN = "written"  # in digits
    SPOKEN = "spoken"  # in words


class Profanity(StrEnum):
    """The ways in which words of the operator's lists are shown."""

    KEEP = "keep"
    MASK = "mask"  # the first letter, and an asterisk for each of the others
    HIDE = "hide"  # four asterisks


class PersonalData(StrEnum):
    """The kinds of personal data that are recognised by their form."""

    EMAIL = "email"
    IP = "ip"
    IBAN = "iban"
    CARD = "card"
    PHONE = "phone"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class TextOptions:
    """The options of one request. By default the text is the model's."""

    text_format: TextFormat = TextFormat.MODEL
    profanity: Profanity = Profanity.KEEP
    redact: tuple[PersonalData, ...] = ()

    @property
    def masks(self) -> bool:
        """True if parts of the text may be replaced because of what they say."""
        return self.profanity is not Profanity.KEEP or bool(self.redact)

    @property
    def asked(self) -> Iterator[str]:
        """Yield the names of the options that do not have their defaults."""
        if self.text_format is not TextFormat.MODEL:
            yield "text_format"
        if self.profanity is not Profanity.KEEP:
            yield "profanity"
        if self.redact:
            yield "redact"

    def check_streamed(self) -> None:
        """Raise `UnsupportedValue` if the text cannot be sent while the recording is transcribed."""
        if self.redact:
            raise UnsupportedValue(
                "'redact' is not served in a stream: what was sent cannot be taken back when the rest of a number "
                "follows. Ask for a whole answer.",
                param="redact",
            )


class TextFields(BaseModel):
    """The fields of forms for these options."""

    text_format: TextFormat = Field(
        TextFormat.MODEL, description="Numbers in digits (`written`), in words (`spoken`), or as the model has them."
    )
    profanity: Profanity = Field(
        Profanity.KEEP, description="Words of the server's lists: `mask` shows `f***`, `hide` shows `****`."
    )
    redact: list[PersonalData] = Field(
        [],
        max_length=20,
        description="Personal data to replace by its kind, as `[EMAIL]`; comma-separated or repeated. Names and "
        "addresses are not found.",
    )

    @property
    def text_options(self) -> TextOptions:
        """The options that the fields state."""
        return TextOptions(self.text_format, self.profanity, tuple(dict.fromkeys(self.redact)))
