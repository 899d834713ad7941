"""A client of a session that moved sees words that are never taken back, and every partial that is news."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from asr_server.features.handover.shown_text import ShownSpeakers, ShownText

WORDS = st.lists(st.sampled_from(["one", "two", "three", "four", "too", "for"]), min_size=1, max_size=6)


def test_other_words_of_the_same_audio_are_shown():
    """A second look at the audio that the client has seen is news; one at less audio is not."""
    text = ShownText()
    text.begin(1, "one", 2.0)
    first = text.on_partial(1, "one too", "one", 2.0)
    second = text.on_partial(1, "one two", "one two", 2.0)
    assert (first.text, second.text, second.committed) == ("one too", "one two", "one two")
    assert text.on_partial(1, "one", "one", 1.9) is None


def test_words_stay_committed_where_another_session_has_committed_fewer():
    """Its hypotheses are fewer so far."""
    text = ShownText()
    text.begin(1, "one two", 2.0)
    assert text.on_partial(1, "one two three", "one", 2.0).committed == "one two"


def test_words_that_a_final_did_not_reach_are_not_said_twice():
    """They may come again at the beginning of the next utterance, and of no later one."""
    for utterance, expected in ((2, "four"), (3, "three four")):
        text = ShownText()
        text.carry_over(2, "three")
        assert text.on_partial(utterance, "three four", "three four", 1.0).committed == expected
    discarded = ShownText()
    discarded.carry_over(2, "three")
    discarded.reset(2)
    assert discarded.on_partial(2, "three four", "", 1.0).text == "three four"


def test_labels_are_kept_of_a_bounded_number_of_utterances():
    """A session may last for a day. The latest ones stay."""
    speakers = ShownSpeakers()
    for utterance in range(1, 1_001):
        speakers.on_text(utterance, "on", [{"speaker": "A", "text": "on"}])
    assert len(speakers._shown) == 256
    assert speakers.on_update(1, [{"speaker": "B", "text": "on"}]) is None
    assert speakers.on_update(1_000, [{"speaker": "B", "text": "on"}]) == [{"speaker": "B", "text": "on"}]


class Shown(RuleBasedStateMachine):
    """One client over several sessions, each of which may word the open utterance otherwise."""

    def __init__(self):
        super().__init__()
        self.text = ShownText()
        self.utterance, self.committed, self.end_s = 1, "", None

    @rule(words=WORDS, count=st.integers(0, 6), later_s=st.integers(-2, 3))
    def partial(self, words, count, later_s):
        """A partial is shown unless it is of less audio, and begins with every word that was committed."""
        end_s = (10.0 if self.end_s is None else self.end_s) + later_s
        found = self.text.on_partial(self.utterance, " ".join(words), " ".join(words[:count]), end_s)
        assert (found is None) == (later_s < 0 and self.end_s is not None)
        if found is not None:
            assert found.committed.startswith(self.committed)
            assert found.text.startswith(found.committed)
            assert found.committed + found.tentative == found.text
            self.committed, self.end_s = found.committed, end_s

    @rule(words=WORDS)
    def final(self, words):
        """The final begins with every word that was committed; the next utterance has shown nothing."""
        assert self.text.on_final(self.utterance, " ".join(words)).startswith(self.committed)
        self.utterance, self.committed, self.end_s = self.utterance + 1, "", None

    @rule()
    def reset(self):
        """The utterance was discarded: nothing of it stays."""
        self.text.reset(self.utterance)
        assert self.text.carried_over(self.utterance) == ""
        self.committed, self.end_s = "", None

    @precondition(lambda self: self.end_s is not None)
    @rule()
    def move(self):
        """Another server goes on from what the client was shown."""
        carried_over = self.text.carried_over(self.utterance)
        self.text = ShownText()
        self.text.begin(self.utterance, self.committed, self.end_s)
        self.text.carry_over(self.utterance, carried_over)


TestShown = Shown.TestCase
TestShown.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


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
    """The runs follow where the text before is another one too; neighbours of one speaker are one run."""
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
