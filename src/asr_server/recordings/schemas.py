"""The answers of the server as pydantic models, which `/docs` shows. Forms are in `fields.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from asr_server.engine.catalog import Task


class JobProgressBody(BaseModel):
    """How far a job is."""

    done_s: float = Field(description="Seconds of the recording whose text is there, or of speech that are made.")
    duration_s: float | None = Field(
        description="Seconds that the recording lasts, once that is known; of speech an estimate until the end."
    )
    fraction: float | None = Field(description="The one over the other, 0 to 1.")
    done_characters: int | None = Field(None, description="Of a text that is spoken: how many are.")
    characters: int | None = Field(None, description="How many it has.")


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


class JobBody(BaseModel):
    """One job. Times are Unix seconds."""

    id: str
    object: Literal["job"] = "job"
    status: Literal["queued", "running", "succeeded", "failed"]
    created_at: int
    started_at: int | None
    ended_at: int | None
    progress: JobProgressBody
    error: ErrorDetail | None = Field(description="Why it failed.")


class JobDeletedBody(BaseModel):
    """A job is gone."""

    id: str
    object: Literal["job"] = "job"
    deleted: Literal[True] = True


class VoiceBody(BaseModel):
    """A voice that speaks."""

    id: str
    name: str = Field(description="The same as `id`, where other servers have it.")
    object: Literal["voice"] = "voice"
    description: str
    languages: list[str]
    alias_of: str | None = Field(None, description="The engine's voice that one of OpenAI's names stands for.")
    also_alias_of: list[str] = Field([], description="Voices of further engines that speak what this one does not.")
    licence: str | None = Field(None, description="Of what the voice was made from, as its maker says.")
    model_card: str | None = Field(None, description="What the voice's maker says about it.")


class VoiceListBody(BaseModel):
    """All voices that speak."""

    object: Literal["list"] = "list"
    data: list[VoiceBody]
    voices: list[VoiceBody] = Field(description="The same list, where Open WebUI and other clients look for it.")


class SpeakerBody(BaseModel):
    """A voice that has a name."""

    id: str
    object: Literal["speaker"] = "speaker"
    name: str
    consent: str = Field(description="On what ground it is stored.")
    created_at: int = Field(description="Unix seconds.")
    model: str = Field(description="What computed it; the voice is recognised where the server runs the same.")


class SpeakerListBody(BaseModel):
    """Voices, oldest first."""

    object: Literal["list"] = "list"
    data: list[SpeakerBody]


class SpeakerDeletedBody(BaseModel):
    """A voice is gone."""

    id: str
    object: Literal["speaker"] = "speaker"
    deleted: Literal[True] = True


class Usage(BaseModel):
    """Seconds of audio, started ones counted."""

    type: Literal["duration"]
    seconds: int


class LogprobBody(BaseModel):
    """One token of the text."""

    token: str
    logprob: float = Field(description="Natural logarithm.")
    bytes: list[int]


class WordBody(BaseModel):
    """One word, with its punctuation, and when it was said."""

    word: str
    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    source: Literal["aligned", "estimated"] = Field(description="Measured, or spread over the speech it lies in.")
    confidence: float | None = Field(
        None, description="Geometric mean of the probabilities of its tokens; absent where they are not known."
    )
    speaker: str | None = Field(None, description="A letter or a name. Only where speakers are told apart.")


class LanguageBody(BaseModel):
    """A language by its code."""

    code: str


class TranscriptionBody(BaseModel):
    """`response_format=json`."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "text": "turn on the kitchen lights please",
                "language": "English",
                "language_code": "en",
                "languages": [{"code": "en"}],
                "usage": {"type": "duration", "seconds": 3},
            }
        }
    )

    text: str
    language: str = Field(description="The English name of the language; for no speech the one asked for, or `auto`.")
    language_code: str = Field(description="Its ISO code; empty where the name is `auto`.")
    languages: list[LanguageBody] = Field(description="The same code, as OpenAI's newer models list it.")
    usage: Usage
    logprobs: list[LogprobBody] | None = Field(None, description="Only with `include[]=logprobs`.")
    words: list[WordBody] | None = Field(None, description="Only with `return_timestamps`.")


class SegmentBody(BaseModel):
    """One span of speech in verbose_json."""

    id: int
    seek: int = Field(description="Start in frames of 10 ms.")
    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float = Field(description="Mean natural log-probability of the tokens.")
    compression_ratio: float = Field(description="UTF-8 bytes over their zlib size.")
    no_speech_prob: float = Field(
        description="Probability the model gave to no speech; with a forced language, 1 minus the detector's peak."
    )
    complete: bool = Field(description="False when the token budget ended the text.")
    speaker: str | None = Field(None, description="A letter or a name. Only where speakers are told apart.")


class CueBody(BaseModel):
    """One cue, as subtitles show it."""

    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    text: str = Field(description="Lines, separated by line breaks.")
    speaker: str | None = Field(None, description="A letter or a name. Only where speakers are told apart.")


class VerboseTranscriptionBody(BaseModel):
    """`response_format=verbose_json`."""

    task: Literal["transcribe"]
    language: str = Field(description="English name of the language in lower case.")
    language_code: str
    languages: list[LanguageBody]
    duration: float = Field(description="Seconds.")
    text: str
    segments: list[SegmentBody] | None = Field(None, description="Unless only words are asked for.")
    words: list[WordBody] | None = Field(None, description="Where words are asked for.")
    cues: list[CueBody] | None = Field(None, description="Where cues are asked for.")
    usage: Usage


class DiarizedSegmentBody(BaseModel):
    """What one speaker says without another in between, in diarized_json."""

    type: Literal["transcript.text.segment"]
    id: str
    start: float = Field(description="Seconds.")
    end: float = Field(description="Seconds.")
    text: str
    speaker: str = Field(description="A letter, in the order in which the speakers begin, or a known name.")


class DiarizedTranscriptionBody(BaseModel):
    """`response_format=diarized_json`."""

    task: Literal["transcribe"]
    duration: float = Field(description="Seconds.")
    text: str
    segments: list[DiarizedSegmentBody]
    usage: Usage


class TranslationBody(TranscriptionBody):
    """`response_format=json` of a translation."""

    language: str = Field(description="English name of the text's language.")
    source_language: str = Field(description="The model's name of the language that is spoken.")
    untranslated: int = Field(description="Segments that could not be translated and stayed as they were.")
    source_text: str | None = Field(None, description="Only with `bilingual`.")


class TranslatedSegmentBody(SegmentBody):
    """One span of speech in verbose_json. Scores and times are the recognition's; tokens are empty."""

    translated: bool
    reason: str = Field(description="Why there is no translation; empty where there is one.")
    source_text: str | None = Field(None, description="Only with `bilingual`.")


class VerboseTranslationBody(VerboseTranscriptionBody):
    """`response_format=verbose_json` of a translation."""

    task: Literal["translate"]  # type: ignore[assignment]  # OpenAI's own name of the task
    source_language: str
    untranslated: int
    source_text: str | None = None
    segments: list[TranslatedSegmentBody]  # type: ignore[assignment]  # segments of this body say more


class TextTranslationBody(BaseModel):
    """Texts in another language, in the order in which they were sent."""

    translations: list[str] = Field(description="The translation of each text, or the text itself.")
    reasons: list[str] = Field(description="Why a text has no translation; empty where it has one.")
    untranslated: int = Field(description="Texts that could not be translated and stayed as they were.")
    language: str = Field(description="English name of the target language.")
    language_code: str = Field(description="Its BCP 47 tag.")


class ModelBody(BaseModel):
    """One model name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    task: Task = Field(description="What it is for.")


class ModelList(BaseModel):
    """All model names."""

    object: Literal["list"] = "list"
    data: list[ModelBody]
