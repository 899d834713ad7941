"""The fields about speakers: whether they are distinguished, how many there are, and whose voices are known."""

from __future__ import annotations

import base64

from asr_server.core.errors import InvalidValue
from asr_server.recordings.fields import RecordingForm
from asr_server.recordings.requests import MAX_CLIPS_BYTES, ChannelMode, KnownSpeaker, SpeakerOptions

_COUNTS = ("num_speakers", "min_speakers", "max_speakers")
_NAMES, _REFERENCES = "known_speaker_names", "known_speaker_references"


def speaker_options(fields: RecordingForm, *, diarized: bool = False) -> SpeakerOptions | None:
    """Return the options about speakers, or None if they are not distinguished. Raises `InvalidValue`.

    `diarized`: the format of the answer is diarized_json. A field that has its default is the same as one that was left
    out, since generated clients send all fields.
    """
    if not (fields.speakers or diarized):
        _refuse(fields, (*_COUNTS, _NAMES, _REFERENCES, "speaker_style"), "needs speakers=true.")
        if fields.channel_mode is ChannelMode.SPLIT:
            raise InvalidValue("'channel_mode' needs speakers=true.", param="channel_mode")
        return None
    if fields.channel_mode is ChannelMode.SPLIT:
        _refuse(fields, _COUNTS, "contradicts channel_mode=split: its channels are the speakers.")
    at_least, at_most = _count(fields)
    return SpeakerOptions(at_least, at_most, _known(fields))


def channel_mode(fields: RecordingForm, speakers: SpeakerOptions | None) -> ChannelMode:
    """Return the mode of channels; by default it depends on whether speakers are distinguished."""
    if speakers is None:
        return ChannelMode.MIX
    return fields.channel_mode or ChannelMode.AUTO


def _refuse(fields: RecordingForm, names: tuple[str, ...], reason: str) -> None:
    declared = type(fields).model_fields
    for name in names:
        if name in declared and getattr(fields, name) != declared[name].default:
            raise InvalidValue(f"'{name}' {reason}", param=name)


def _count(fields: RecordingForm) -> tuple[int, int | None]:
    exact, at_least, at_most = fields.num_speakers, fields.min_speakers, fields.max_speakers
    if exact is None:
        if at_least and at_most and at_least > at_most:
            raise InvalidValue("'min_speakers' is more than 'max_speakers'.", param="min_speakers")
        return at_least or 1, at_most
    if at_least or at_most:
        raise InvalidValue(
            "'num_speakers' is exact: leave out 'min_speakers' and 'max_speakers'.", param="num_speakers"
        )
    return exact, exact


def _known(fields: RecordingForm) -> tuple[KnownSpeaker, ...]:
    names, references = fields.known_speaker_names, fields.known_speaker_references
    if len(names) != len(references):
        raise InvalidValue(
            f"Every known speaker has a name and a reference, and there are {len(names)} names and {len(references)} "
            "references. Repeat the fields: a comma is part of a name.",
            param=_REFERENCES if len(references) < len(names) else _NAMES,
        )
    if len(set(names)) < len(names):
        raise InvalidValue("Two known speakers have the same name.", param=_NAMES)
    clips = [_clip(reference) for reference in references]
    if sum(map(len, clips)) > MAX_CLIPS_BYTES:
        raise InvalidValue(f"The references have more than {MAX_CLIPS_BYTES:_} bytes together.", param=_REFERENCES)
    return tuple(map(KnownSpeaker, names, clips))


def _clip(reference: str) -> bytes:
    """Return the audio file in a data URL, also with the line breaks that `base64` writes. Its type is ignored."""
    head, _, data = reference.partition(",")
    if not head.lower().startswith("data:") or not head.lower().endswith(";base64"):
        raise InvalidValue("A reference is a data URL like 'data:audio/wav;base64,UklGRg...'.", param=_REFERENCES)
    try:
        clip = base64.b64decode("".join(data.split()), validate=True)
    except ValueError:
        raise InvalidValue("A reference is not valid base64.", param=_REFERENCES) from None
    if not clip:
        raise InvalidValue("A reference is empty.", param=_REFERENCES)
    return clip
