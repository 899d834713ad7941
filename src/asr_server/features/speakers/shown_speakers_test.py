"""Runs of text that workers have labelled one after the other; with a whole session in live_replay_test."""

from asr_server.features.speakers.shown_speakers import ShownSpeakers


def _runs(*runs):
    return [{"speaker": who, "text": text} for who, text in runs]


def test_what_the_next_worker_did_not_say_itself_has_no_speaker():
    """It words the utterance otherwise, and the client keeps the text that it has seen and what follows it."""
    shown = ShownSpeakers()
    shown.on_text(1, "turn on", _runs(("A", "turn on")))
    shown.restarted()
    found = shown.on_text(1, "turn on the light", _runs(("B", "turned on a light")))
    assert found == _runs(("A", "turn on"), (None, " the light"))


def test_the_next_worker_labels_what_follows():
    """Also where the text of the beginning is another one; neighbours of one speaker are one run."""
    shown = ShownSpeakers()
    shown.on_text(1, "turn on", _runs(("A", "turn on")))
    shown.restarted()
    said = _runs(("B", "turned on the"), ("A", " light"))
    assert shown.on_text(1, "turn on the light", said) == _runs(("A", "turn on"), ("B", " the"), ("A", " light"))
    assert shown.on_update(1, _runs(("A", "turned on the light"))) == _runs(("A", "turn on the light"))


def test_a_text_that_the_client_has_not_seen_is_not_refined():
    """It was made from less audio than what the client has."""
    assert ShownSpeakers().on_update(1, _runs(("A", "turn on"))) is None


def test_letters_behind_z_are_counted_on():
    """AB is the 28th speaker; a name is no letter."""
    shown = ShownSpeakers()
    shown.on_text(1, "turn on the", _runs(("AB", "turn"), (None, " on"), ("Ann", " the")))
    assert shown.first_unused == 28


def test_names_of_stored_voices_stay_names():
    """The next worker may know the same person again. A name of capital letters is not counted as a speaker."""
    shown = ShownSpeakers()
    shown.on_text(1, "turn on", _runs(("B", "turn"), ("BOB", " on")))
    shown.restarted()
    assert shown.first_unused == 2
    said = _runs(("C", "turn on"), ("BOB", " the"), ("C", " light"))
    assert shown.on_text(1, "turn on the light", said) == _runs(("B", "turn"), ("BOB", " on the"), ("C", " light"))
    assert shown.first_unused == 3


def test_the_letters_of_the_next_worker_begin_behind_those_before():
    """Each worker has 40 at most, so that the 42nd letter is no name there."""
    shown = ShownSpeakers()
    shown.on_text(1, "turn on", _runs(("A", "turn"), ("AP", " on")))
    assert shown.first_unused == 1
    shown.on_text(1, "turn on", _runs(("B", "turn on")))
    shown.restarted()
    shown.on_text(1, "turn on the", _runs(("B", "turn on"), ("AP", " the")))
    assert shown.first_unused == 42
