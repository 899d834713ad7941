"""Stored voices, and the names of speakers."""

import fcntl
import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from asr_server.core.conftest import raises
from asr_server.core.errors import SpeakersUnavailable
from asr_server.features.speakers import voices as module
from asr_server.features.speakers.voices import SAME_VOICE, EnrolledVoice, NamedVoice, VoiceStore, named

OWNER = "a" * 32


def unit(*numbers):
    return (np.array(numbers) / np.linalg.norm(numbers)).astype(np.float32)


def voice(name="Ann", **changes):
    given = {"name": name, "voice_print": unit(1, 2, 3), "model": "m", "consent": "by letter"}
    return EnrolledVoice(**given | changes)


def content(found):
    return [{**asdict(each), "voice_print": each.voice_print.tolist()} for each in found]


@pytest.fixture
def store(tmp_path):
    return VoiceStore(tmp_path)


def paths(tmp_path):
    """All files below, without those of jobs and the lock."""
    return sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock")


@pytest.mark.parametrize("identity", ["", "..", "spk_x", "../" + "b" * 32, "spk_" + "/" * 24, f"spk_{'x' * 24}\0"])
def test_an_id_is_no_path(store, tmp_path, identity):
    store.put(OWNER, voice())
    for attempt in (store.voice, store.delete):
        with raises("speaker_not_found"):
            attempt(OWNER, identity)
    assert len(paths(tmp_path)) == 1


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"[]", b'{"version": 1}', b'{"version": "x"}', {"voice_print": ""}, {"voice_print": "AADAfw=="}),  # NaN
        *({"id": "spk_" + "y" * 24}, {"name": 5}, {"consent": "x" * 70_000}),
    ],
    ids=range(9),
)
def test_a_damaged_file_is_put_aside(store, tmp_path, damage):
    """The other voices are there; nothing is deleted, and no name is in the log."""
    good, bad = store.put(OWNER, voice("Ann")), store.put(OWNER, voice("Bobby"))
    (path,) = [path for path in paths(tmp_path) if bad.id in path.name]
    kept = damage if isinstance(damage, bytes) else json.dumps(json.loads(path.read_bytes()) | damage).encode()
    path.write_bytes(kept)
    lines = []
    sink = logger.add(lines.append, format="{level} {message} {extra}")
    found = [[each.id for each in store.voices(OWNER)] for _ in range(2)]
    logger.remove(sink)
    assert found == [[good.id]] * 2
    assert (tmp_path / "unreadable-speakers" / f"{OWNER}_{bad.id}.json").read_bytes() == kept
    assert len(lines) == 1
    assert bad.id in lines[0]
    assert "Bobby" not in lines[0]


def test_a_voice_of_a_newer_version_stays(store, tmp_path):
    store.put(OWNER, voice())
    (path,) = paths(tmp_path)
    path.write_text('{"version": 2, "anything": "else"}')
    assert store.voices(OWNER) == []
    assert paths(tmp_path) == [path]


def test_a_server_that_died_while_it_wrote_leaves_nothing_for_ever(store, tmp_path):
    """Half a file is no voice, and the next that is stored removes it. Things of others stay."""
    store.put(OWNER, voice())
    folder = tmp_path / "speakers" / OWNER
    (folder / f"spk_{'x' * 24}.part").write_bytes(b"half of a print")
    (folder / "notes.txt").write_text("notes of others")
    assert len(store.voices(OWNER)) == 1
    store.put(OWNER, voice("Bob"))
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".json", ".txt"]


def test_a_full_disk_keeps_the_voice_that_was_there(store, tmp_path, monkeypatch):
    first = store.put(OWNER, voice())
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(SpeakersUnavailable, match="No space left on device"):
        store.put(OWNER, voice(consent="new"))
    assert content(store.voices(OWNER)) == content([first])
    assert len(paths(tmp_path)) == 1


def test_voices_stored_at_the_same_time_are_all_there(store, tmp_path):
    """And those of one name are one, also where several servers share the directory."""
    servers, names = (store, VoiceStore(tmp_path), VoiceStore(tmp_path)), ("Ann", "Bob", "Cid")
    with ThreadPoolExecutor(18) as pool:
        list(pool.map(lambda at: at[0].put(OWNER, voice(at[1])), 2 * [*itertools.product(servers, names)]))
    assert sorted(each.name for each in store.voices(OWNER)) == [*names]


def test_who_holds_the_lock_for_long_is_not_waited_for(store, tmp_path, monkeypatch):
    """As a server that is stopped in the middle: the others cannot write, and still read."""
    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.1)
    stored = store.put(OWNER, voice())
    with (tmp_path / "speakers" / ".lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(SpeakersUnavailable, match="Another server"):
            store.put(OWNER, voice("Bob"))
        with pytest.raises(SpeakersUnavailable, match="Another server"):
            store.delete(OWNER, stored.id)
        assert content(store.voices(OWNER)) == content([stored])
    store.delete(OWNER, stored.id)


def at_angle(cosine):
    """A print with that similarity to (1, 0)."""
    return np.array([cosine, np.sqrt(1 - cosine**2)], np.float32)


def test_a_speaker_has_the_name_of_the_similar_voice():
    """Whatever the lengths of the prints are. A name is given once, and of two voices of a name the first counts."""
    ann, bob, other_ann = (
        NamedVoice(name=name, voice_print=unit(*of)) for name, of in (("Ann", (1, 0)), ("Bob", (0, 1)), ("Ann", (0, 1)))
    )
    assert named([7 * unit(1, 8), unit(9, 1), unit(-1, -1)], [ann, bob]) == ["Bob", "Ann", None]
    assert [named([at_angle(SAME_VOICE + more)], [ann]) for more in (0.01, -0.01)] == [["Ann"], [None]]
    assert named([], [ann]) == []
    assert named([np.zeros(2, np.float32)], [ann]) == [None]
    assert named([unit(1, 0, 0)], [ann]) == [None]  # of another shape, as another model writes them
    assert named([at_angle(0.8), at_angle(0.9)], [ann]) == [None, "Ann"]
    assert named([unit(1, 0), unit(0, 1)], [ann, other_ann]) == ["Ann", None]


@given(st.data())
def test_the_names_are_those_with_the_largest_sum(data):
    speakers, known = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    number = st.floats(-1, 1, width=32, allow_subnormal=False)
    numbers = st.lists(number, min_size=3, max_size=3).filter(lambda v: np.linalg.norm(v) > 0.1)
    prints = [unit(*data.draw(numbers)) for _ in range(speakers)]
    voices = [NamedVoice(name=str(n), voice_print=unit(*data.draw(numbers))) for n in range(known)]
    excess = module.similarities(prints, [each.voice_print for each in voices]) - SAME_VOICE

    def total(columns):
        return sum(max(excess[row, column], 0) for row, column in enumerate(columns) if column < known)

    best = max(total(columns) for columns in itertools.permutations(range(known + speakers), speakers))
    names = named(prints, voices)
    given_names = [name for name in names if name is not None]
    assert len(given_names) == len(set(given_names))
    assert all(excess[row, int(name)] >= 0 for row, name in enumerate(names) if name is not None)
    found = sum(excess[row, int(name)] for row, name in enumerate(names) if name is not None)
    assert found == pytest.approx(best, abs=1e-6)
