"""A client of a session that moved sees words that are never taken back, and every partial that is news."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from asr_server.features.handover.shown_text import ShownText

WORDS = st.lists(st.sampled_from(["one", "two", "three", "four", "too", "for"]), min_size=1, max_size=6)


def test_other_words_of_the_same_audio_are_shown():
    """A second look at the audio that the client has seen is news; one at less audio is not."""
    text = ShownText()
    text.begin(1, "one", 2.0)
    first = text.on_partial(1, "one too", "one", 2.0)
    second = text.on_partial(1, "one two", "one two", 2.0)
    assert (first.text, second.text, second.committed) == ("one too", "one two", "one two")
    assert text.on_partial(1, "one", "one", 1.9) is None


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
        self.text.reset()
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
