"""The packaged voice keeps the contract of `features/speech_output/engines/conformance_test.py`."""

import pytest

from asr_server.features.piper import DEFAULT, SPEECH
from asr_server.features.speech_output.engines.conformance_test import (
    alone,
    sentences,
    test_a_dropped_row_has_no_outcome_and_its_slot_is_free,
    test_a_longer_text_is_longer_and_has_a_sound,
    test_a_step_without_rows_does_nothing,
    test_it_speaks_the_same_after_it_was_unloaded,
    test_only_what_the_traits_say_changes_the_samples,
    test_rows_do_not_change_each_other,
    test_samples_are_mono_at_24_khz_within_full_scale,
    test_the_longest_sentence_is_spoken_to_its_end,
    test_the_sentences_differ,
    test_traits_name_what_the_engine_takes,
    together,
)

__all__ = [
    "alone",
    "sentences",
    "test_a_dropped_row_has_no_outcome_and_its_slot_is_free",
    "test_a_longer_text_is_longer_and_has_a_sound",
    "test_a_step_without_rows_does_nothing",
    "test_it_speaks_the_same_after_it_was_unloaded",
    "test_only_what_the_traits_say_changes_the_samples",
    "test_rows_do_not_change_each_other",
    "test_samples_are_mono_at_24_khz_within_full_scale",
    "test_the_longest_sentence_is_spoken_to_its_end",
    "test_the_sentences_differ",
    "test_traits_name_what_the_engine_takes",
    "together",
]


@pytest.fixture(scope="module")
def engine():
    (made,) = SPEECH.build(DEFAULT)
    made.load()
    yield made
    made.unload()
