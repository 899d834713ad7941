"""Named voices: stores them, and finds them among the speakers of a recording.

A voice is a file in `STATE_DIR/speakers/OWNER/`. Nothing is kept in memory: each use reads the files, so that a deleted
voice is not recognised any more. Each file is written under another name and then renamed. Several servers may share
the directory: a lock makes them write in turn.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pydantic_core
from loguru import logger
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from asr_server.core.errors import InvalidInput, Overloaded, SpeakersUnavailable
from asr_server.features.speakers.diarization.clustering import unit
from asr_server.features.speakers.diarization.turns import VoicePrint

VOICES, UNREADABLE_VOICES, _LOCK = "speakers", "unreadable-speakers", ".lock"
MAX_VOICES_EACH, MAX_VOICES = 200, 2_000
# Two prints are of one person if the cosine of their angle is at least this. docs/use/speakers.md has the figures.
SAME_VOICE = 0.5

_ID = re.compile(r"spk_[A-Za-z0-9_-]{24}")
_ENDING, _PART, _VERSION = ".json", ".part", 1
_NO_KEY = "no-key"
_MAX_FILE_BYTES, _MAX_DIMENSIONS = 64 * 1024, 4_096
_RETRY_AFTER_S = 60
LOCK_WAIT_S, _LOCK_POLL_S = 5.0, 0.02  # a write takes milliseconds


def _decoded(text: str) -> VoicePrint:
    voice_print = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    if not 0 < len(voice_print) <= _MAX_DIMENSIONS or not np.isfinite(voice_print).all():
        raise ValueError("it holds no print")
    return voice_print


def _encoded(voice_print: VoicePrint) -> str:
    return base64.b64encode(voice_print.astype("<f4").tobytes()).decode()


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class NamedVoice:
    """The voice of a person."""

    name: str
    # In files as base64 of float32, little-endian.
    voice_print: Annotated[NDArray[np.float32], PlainValidator(_decoded), PlainSerializer(_encoded)]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EnrolledVoice(NamedVoice):
    """A voice that is stored."""

    model: str  # which made the print; prints of different models cannot be compared
    consent: str  # the ground on which the voice is stored
    id: str = field(default_factory=lambda: f"spk_{secrets.token_urlsafe(18)}")
    created_at: float = field(default_factory=time.time)  # Unix seconds


def named(voice_prints: Sequence[VoicePrint], voices: Sequence[NamedVoice]) -> list[str | None]:
    """Return the name of each speaker, None for speakers who are similar to none of the voices.

    A name is given once. If several speakers and voices are similar, the choice maximises the sum by which their
    similarities exceed `SAME_VOICE`. Of several voices with the same name, the first counts.
    """
    names: list[str | None] = [None] * len(voice_prints)
    one_each = {voice.name: voice.voice_print for voice in reversed(voices)}
    known = {
        name: print_ for name, print_ in one_each.items() if voice_prints and print_.shape == voice_prints[0].shape
    }
    if known:
        excess = similarities(voice_prints, list(known.values())) - SAME_VOICE
        nobody = np.zeros((len(names), len(names)))
        chosen = _best_columns(np.hstack((np.maximum(excess, 0.0), nobody)))
        for speaker, column in enumerate(chosen):
            if column < len(known) and excess[speaker, column] >= 0:
                names[speaker] = list(known)[column]
    return names


def similarities(some: Sequence[VoicePrint], others: Sequence[VoicePrint]) -> NDArray[np.float64]:
    """Return (some, others): the cosine of the angle between each two, 0 if one of them has no direction."""
    return unit(np.stack(some).astype(np.float64)) @ unit(np.stack(others).astype(np.float64)).T


def _best_columns(gains: NDArray[np.float64]) -> list[int]:
    """Return a column for each row, none twice, so that the sum of gains is the largest possible.

    There are at least as many columns as rows. The Hungarian method with potentials, O(rows^2 * columns).
    """
    rows, columns = gains.shape
    row_potential, column_potential = np.zeros(rows + 1), np.zeros(columns + 1)
    row_of = np.zeros(columns + 1, np.intp)  # rows and columns count from 1; column 0 stands for the row to be placed
    for row in range(1, rows + 1):
        row_of[0], column = row, 0
        slack, before = np.full(columns + 1, np.inf), np.zeros(columns + 1, np.intp)
        visited = np.zeros(columns + 1, np.bool_)
        while row_of[column]:
            visited[column] = True
            at = row_of[column]
            reduced = -gains[at - 1] - row_potential[at] - column_potential[1:]
            nearer = ~visited[1:] & (reduced < slack[1:])
            slack[1:][nearer], before[1:][nearer] = reduced[nearer], column
            column = int(np.where(visited, np.inf, slack)[1:].argmin()) + 1
            step = slack[column]
            row_potential[row_of[visited]] += step
            column_potential[visited] -= step
            slack[~visited] -= step
        while column:
            row_of[column] = row_of[before[column]]
            column = int(before[column])
    column_of = np.zeros(rows, np.intp)
    placed = np.flatnonzero(row_of[1:])
    column_of[row_of[1:][placed] - 1] = placed
    return [int(column) for column in column_of]


class VoiceStore:
    """The voices of all owners. `owner`: whose key stored a voice, "" without keys.

    All methods read or write files, which takes a while: call them in a thread. They raise `SpeakersUnavailable` if the
    directory cannot be used.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def comparable(self, owner: str, model: str) -> list[EnrolledVoice]:
        """Return the owner's voices whose prints this model made."""
        return [voice for voice in self.voices(owner) if voice.model == model]

    def voice(self, owner: str, identity: str) -> EnrolledVoice:
        """Return a voice. Raises `speaker_not_found`, also for voices of other owners."""
        for voice in self.voices(owner):
            if voice.id == identity:
                return voice
        raise _not_found()

    def _folder(self, owner: str) -> Path:
        try:
            return self._state_dir.expanduser() / VOICES / (owner or _NO_KEY)
        except RuntimeError:  # pathlib's
            raise SpeakersUnavailable("STATE_DIR cannot be used (this user has no home directory).") from None

    def voices(self, owner: str) -> list[EnrolledVoice]:
        """Return the owner's voices, oldest first.

        Files that hold no voice are moved to `unreadable-speakers`; files of a newer version of the server stay.
        """
        found, newer = [], 0
        with _map_errors():
            for path in _files(self._folder(owner)):
                try:
                    found.append(_read(path))
                except FileNotFoundError:  # deleted meanwhile
                    continue
                except _NewerVersion:
                    newer += 1
                except (ValueError, TypeError, KeyError) as error:
                    self._move_aside(path, type(error).__name__)
        if newer:
            logger.warning("voices are of a newer version of the server and wait for it", voices=newer)
        return sorted(found, key=lambda voice: voice.created_at)

    def place(self, owner: str, name: str) -> str | None:
        """Return the id of the owner's voice of that name, or None if there is none.

        Raises `Overloaded` if there is no room for another one.
        """
        for voice in self.voices(owner):
            if voice.name == name:
                return voice.id
        with _map_errors():
            folder = self._folder(owner)
            if len(_files(folder)) >= MAX_VOICES_EACH:
                raise _full(f"{MAX_VOICES_EACH} voices are stored for this key, the most that it may have")
            if folder.parent.exists() and sum(len(_files(each)) for each in folder.parent.iterdir()) >= MAX_VOICES:
                raise _full(f"{MAX_VOICES} voices are stored, the most that this server keeps")
        return None

    def put(self, owner: str, voice: EnrolledVoice) -> EnrolledVoice:
        """Store a voice. It replaces the owner's voice of that name, if there is one, and gets its id.

        Raises `Overloaded` if there are too many.
        """
        folder = self._folder(owner)
        with _map_errors(), _locked(folder.parent):
            if same := self.place(owner, voice.name):
                voice = replace(voice, id=same)
            folder.mkdir(exist_ok=True, mode=0o700)
            for left in folder.glob(f"*{_PART}"):  # left by a server that died
                left.unlink(missing_ok=True)
            path = folder / f"{voice.id}{_ENDING}"
            part = path.with_suffix(_PART)
            try:
                with open(part, "xb", opener=_private) as sink:
                    content = {"version": _VERSION, **_enrolled_voices.dump_python(voice)}
                    sink.write(pydantic_core.to_json(content))
                    sink.flush()
                    os.fsync(sink.fileno())
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            _sync(folder)
        return voice

    def delete(self, owner: str, identity: str) -> None:
        """Remove the file of a voice. Raises `speaker_not_found`."""
        if not _ID.fullmatch(identity):
            raise _not_found()
        folder = self._folder(owner)
        path = folder / f"{identity}{_ENDING}"
        with _map_errors():
            if not path.exists():
                raise _not_found()
            with _locked(folder.parent):
                path.unlink(missing_ok=True)  # another server may have removed it meanwhile
                _sync(folder)

    def _move_aside(self, path: Path, reason: str) -> None:
        place = path.parent.parent.parent / UNREADABLE_VOICES
        try:
            place.mkdir(mode=0o700, exist_ok=True)
            path.rename(place / f"{path.parent.name}_{path.name}")
        except OSError as error:
            logger.warning("voice is unreadable", id=path.stem, reason=reason, not_moved=error.strerror)
        else:
            logger.warning("voice is unreadable and was moved", id=path.stem, reason=reason, place=str(place))


class _NewerVersion(Exception):
    """The file was written by a newer version of the server."""


_enrolled_voices = TypeAdapter(EnrolledVoice)


def _read(path: Path) -> EnrolledVoice:
    """Read a voice. Raises `_NewerVersion`, `OSError`, and various errors for a damaged file."""
    with path.open("rb") as file:
        content = pydantic_core.from_json(file.read(_MAX_FILE_BYTES))
    if content["version"] > _VERSION:
        raise _NewerVersion
    voice = _enrolled_voices.validate_python(content)
    if voice.id != path.stem:
        raise ValueError("the file is of another voice")
    return voice


def _files(folder: Path) -> list[Path]:
    """Return the files of an owner's voices. Files with other names are not the server's."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names if name.endswith(_ENDING) and _ID.fullmatch(name.removesuffix(_ENDING))]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _sync(folder: Path) -> None:
    """Write the names in the folder to the disk: a deleted voice must not come back after a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other threads and servers from writing voices. The kernel frees the lock of a process that dies."""
    for place in (folder.parent, folder):  # `mode` does not apply to parents
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        give_up_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    raise SpeakersUnavailable("Another server is writing voices; try again.") from None
                time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _map_errors() -> Iterator[None]:
    """Raise `SpeakersUnavailable` for disk errors. Drop the traceback: the message says what is known."""
    try:
        yield
    except OSError as error:
        raise SpeakersUnavailable(f"The voices in STATE_DIR cannot be used ({error.strerror}).") from None


def _full(reason: str) -> Overloaded:
    return Overloaded(f"{reason}; delete some first.", retry_after_s=_RETRY_AFTER_S)


def _not_found() -> InvalidInput:
    return InvalidInput("There is no voice of this id.", code="speaker_not_found", param="speaker_id")
