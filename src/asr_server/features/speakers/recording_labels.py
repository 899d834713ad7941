"""Puts speakers into a transcript: each word gets its speaker, and segments are divided where the speaker changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from asr_server.core.transcript import Segment, TimeSource, Token, Word
from asr_server.features.speakers.diarization import assignment
from asr_server.features.speakers.diarization.turns import Turn


def labelled(segments: Sequence[Segment], turns: Sequence[Turn], names: Sequence[str]) -> tuple[Segment, ...]:
    """Return the segments, each of one speaker. `names`: of the speakers by index. Without turns nothing changes."""
    if not turns:
        return tuple(segments)
    # A text without words, as of numbers alone, is one word here.
    words = [segment.words or (_whole(segment),) for segment in segments]
    speakers = iter(assignment.speakers([word for each in words for word in each], turns))
    found: list[Segment] = []
    for segment, own in zip(segments, words, strict=True):
        named = [replace(word, speaker=names[next(speakers)]) for word in own]
        if segment.words:
            found += _divided(segment, named)
        else:
            found.append(replace(segment, speaker=named[0].speaker))
    return tuple(found)


def _whole(segment: Segment) -> Word:
    return Word(segment.text, segment.start_ms, segment.end_ms, TimeSource.ESTIMATED)


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
            complete=segment.complete or place < last,
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
    at = -(len(written) - len(written.lstrip()))  # the text is without the white space around it
    for token in segment.spoken:
        begin = at + len(token.written) - len(token.written.lstrip())
        part = sum(edge <= max(begin, 0) for edge in edges[1:-1])
        parts[part].append(token)
        at += len(token.written)
    return [tuple(part) for part in parts]
