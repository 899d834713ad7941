"""The speakers of one recording, by their voices or by its channels, found while it is decoded and transcribed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np

from asr_server.core.audio import SAMPLE_RATE
from asr_server.core.transcript import MAX_SPEAKERS, Segment, TimeSource, Token, Word
from asr_server.features.speakers.diarization import assignment
from asr_server.features.speakers.diarization.turns import Diarization, SpeakerCount, Turn, label
from asr_server.features.speakers.speaker_names import RecordingNames, known_voices
from asr_server.processes.caller_work import in_thread
from asr_server.recordings.pipeline import RecordingStep

if TYPE_CHECKING:
    from asr_server.audio.decode import Decoder, Samples
    from asr_server.audio.segmentation import SpeechSpan
    from asr_server.features.speakers.diarization.client import SpeakerClient
    from asr_server.features.speakers.voices import VoiceStore
    from asr_server.recordings.pipeline import BeginStep, PrepareStep, RunOptions
    from asr_server.recordings.requests import RecordingRequest
    from asr_server.recordings.segmenter import RecordingSignal


def labelled(segments: Sequence[Segment], turns: Sequence[Turn], names: Sequence[str]) -> tuple[Segment, ...]:
    """Divide the segments by speaker. `names`: the speakers' names, by index. Without turns nothing changes."""
    if not turns:
        return tuple(segments)
    # A text without words, such as one of only numbers, counts as one word here.
    words = [one.words or (Word(one.text, one.start_ms, one.end_ms, TimeSource.ESTIMATED),) for one in segments]
    speakers = iter(assignment.speakers([word for each in words for word in each], turns))
    found: list[Segment] = []
    for segment, own in zip(segments, words, strict=True):
        named = [replace(word, speaker=names[next(speakers)]) for word in own]
        if segment.words:
            found += _divided(segment, named)
        else:
            found.append(replace(segment, speaker=named[0].speaker))
    return tuple(found)


def _divided(segment: Segment, words: Sequence[Word]) -> Iterator[Segment]:
    """Yield a part for each run of words of one speaker, with its part of the text, the tokens and the time."""
    runs = [list(run) for _, run in groupby(words, key=lambda word: word.speaker)]
    cuts = [0, *_starts(segment.text, runs)[1:], len(segment.text)]
    spoken = _tokens(segment, cuts)
    rest = len(segment.tokens) - len(segment.spoken)  # ids that write nothing, such as those that name the language
    last = len(runs) - 1
    done = 0
    for place, (run, (begin, end)) in enumerate(zip(runs, pairwise(cuts), strict=True)):
        own, first = spoken[place], done
        done += len(own) + (rest if place == 0 else 0)
        logprobs = [token.logprob for token in own]
        yield replace(
            segment,
            start_ms=segment.start_ms if place == 0 else run[0].start_ms,
            end_ms=segment.end_ms if place == last else run[-1].end_ms,
            text=segment.text[begin:end].strip(),
            tokens=segment.tokens[first:done] if place < last else segment.tokens[first:],
            mean_logprob=sum(logprobs) / len(logprobs) if logprobs else segment.mean_logprob,
            cut_short=segment.cut_short if place == last else None,
            words=tuple(run),
            spoken=own,
            prompt_tokens=segment.prompt_tokens if place == 0 else 0,
            audio_tokens=segment.audio_tokens if place == 0 else 0,
            speaker=run[0].speaker,
        )


def _starts(text: str, runs: Sequence[Sequence[Word]]) -> list[int]:
    """Return the positions in the text at which the first words of the runs begin."""
    starts, at = [], 0
    for run in runs:
        for place, word in enumerate(run):
            found = text.find(word.text, at)
            at = found if found >= 0 else at
            if place == 0:
                starts.append(at)
            at += len(word.text) if found >= 0 else 0
    return starts


def _tokens(segment: Segment, cuts: Sequence[int]) -> list[tuple[Token, ...]]:
    """Return the tokens that write each part. A token belongs to the part in which it begins."""
    edges = [len(segment.text[:cut].encode()) for cut in cuts]
    parts: list[list[Token]] = [[] for _ in pairwise(cuts)]
    written = b"".join(token.written for token in segment.spoken)
    at = -(len(written) - len(written.lstrip()))  # the text lacks the white space around the tokens
    for token in segment.spoken:
        begin = at + len(token.written) - len(token.written.lstrip())
        part = sum(edge <= max(begin, 0) for edge in edges[1:-1])
        parts[part].append(token)
        at += len(token.written)
    return [tuple(part) for part in parts]


# Most blocks of 2 s that wait for analysis: transcription may be this far ahead of it.
_WAITING_BLOCKS = 64
# The most speech by which the person of a channel is recognised. More helps little (diarization/live.py).
_HEARD_SAMPLES = 12 * SAMPLE_RATE


def speaker_step(client: SpeakerClient, decoder: Decoder, stored: VoiceStore) -> PrepareStep:
    """Return the step that gives the segments of a recording their speakers."""

    async def prepare(request: RecordingRequest, options: RunOptions) -> BeginStep:
        clips = dict(zip(request.known_speaker_names, request.known_speaker_references, strict=True))
        known = await known_voices(client, decoder, clips, options.caller)
        names = RecordingNames(
            client, known, partial(asyncio.to_thread, stored.comparable, options.owner, client.voice_model)
        )
        least, most = request.num_speakers or request.min_speakers, request.num_speakers or request.max_speakers
        return partial(_begin, client, SpeakerCount(least or 1, most or MAX_SPEAKERS), names)

    return prepare


def _begin(
    client: SpeakerClient,
    count: SpeakerCount,
    names: RecordingNames,
    signal: RecordingSignal,
    group: asyncio.TaskGroup,
) -> RecordingStep:
    if signal.is_split:
        return ChannelSpeakers(names)
    voices = RecordingSpeakers(client, count, names)
    group.create_task(voices.run())
    return voices


class RecordingSpeakers(RecordingStep):
    """The speakers of one recording. `run` is a separate task that raises nothing, so it does not affect the text.

    Blocks wait in a bounded queue: if decoding is faster than the analysis, it waits.
    """

    def __init__(self, client: SpeakerClient, count: SpeakerCount, names: RecordingNames) -> None:
        self._client = client
        self._names = names
        self._count = count
        self._blocks: asyncio.Queue[Samples | None] = asyncio.Queue(_WAITING_BLOCKS)
        self._found: asyncio.Future[Diarization] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        try:
            async with self._client.recording() as recording:
                while (block := await self._blocks.get()) is not None:
                    await recording.push(block)
                found = await recording.finish(self._count)
        except Exception as error:
            self._found.set_exception(error)
            self._found.exception()  # marks it as retrieved: if the recording fails first, `mapped` does not raise it
            # Empty the queue, so that `push` does not wait. If no end comes, the loop is cancelled with the recording.
            while await self._blocks.get() is not None:
                pass
        else:
            self._found.set_result(found)

    async def push(self, block: Samples) -> None:
        """Add samples: (n,) float32, mono, 16 kHz. They may exceed [-1, 1], because the analysis scales them."""
        await self._blocks.put(block)

    async def end(self) -> None:
        await self._blocks.put(None)

    async def mapped(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Return the segments, divided by speaker. Raises `SpeakersUnavailable`."""
        found = await self._found
        if not found.voice_prints:  # nobody speaks for long enough to be distinguished from others
            names = [label(0)]
        else:
            names = await self._names.of(found.voice_prints)
        # In a thread: hours of words and the turns of many people take half a second.
        return await in_thread(labelled, segments, found.turns, names)


class ChannelSpeakers(RecordingStep):
    """The speakers of one recording, in which each channel is one person."""

    def __init__(self, names: RecordingNames) -> None:
        self._names = names
        self._speech: dict[str, Samples] = {}
        self._found: dict[str, str] = {}

    def hear(self, span: SpeechSpan) -> None:
        """Take the next span of any channel."""
        assert span.speaker is not None
        before = self._speech.get(span.speaker, np.zeros(0, np.float32))
        if len(before) < _HEARD_SAMPLES:
            self._speech[span.speaker] = np.concatenate((before, span.audio))[:_HEARD_SAMPLES]

    async def end(self) -> None:
        self._found = await self._names.of_channels(self._speech)

    async def mapped(self, segments: Sequence[Segment]) -> Sequence[Segment]:
        """Return the segments with names in place of the letters of their channels."""
        return [
            replace(
                segment,
                speaker=self._found.get(segment.speaker or ""),
                words=tuple(replace(word, speaker=self._found.get(word.speaker or "")) for word in segment.words),
            )
            for segment in segments
        ]
