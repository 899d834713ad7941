"""Captions in the language of readers, from a translator that the test scripts."""

import asyncio
import json

import pytest

from asr_server.core.errors import InvalidValue, Overloaded, TranslationFailed
from asr_server.features.sharing.captions import Captions, EndReason, Reader
from asr_server.features.sharing.captions_test import final, joined, words
from asr_server.features.sharing.sharing import SharedPart, Sharing
from asr_server.features.sharing.sharing_test import Session
from asr_server.features.sharing.sharing_test import final as final_message
from asr_server.features.sharing.translated import TranslatedCaptions
from asr_server.features.translation.lines import Reason, Translated
from asr_server.text import languages

GERMAN = languages.find("de")


class Translator:
    """Translates "x" to "de x" once it is let, and notes what it was asked."""

    def __init__(self):
        self.asked = []
        self.let = asyncio.Event()
        self.let.set()
        self.fails = False

    async def __call__(self, texts, source_language):
        self.asked.append((list(texts), source_language))
        await self.let.wait()
        if self.fails:
            raise TranslationFailed("no")
        return [Translated(f"de {text}", True, Reason.NONE) for text in texts]


def begun():
    """A source, its translation and the translator."""
    source, translator = Captions(), Translator()
    translated = TranslatedCaptions(source, GERMAN, translator)
    translated.begin()
    return source, translated, translator


async def settled():
    """Let the tasks of the event loop do all that they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def rest(translated, reason=EndReason.SESSION):
    """What a reader gets, when the session ends now."""
    reader = joined(translated.captions)
    translated.reader.end(reason)
    reader.end(reason)
    return [caption async for caption in reader.captions()]


async def test_a_sentence_is_translated_when_it_is_complete_and_not_before():
    """The text of an utterance only grows; numbers and times are the speaker's, the language is the target's."""
    source, translated, translator = begun()
    captions = joined(translated.captions).captions()
    for text in ("Turn", "Turn on.", "Turn on. The", "Turn on. The lamp is"):
        source.put(words(1, text))
        await settled()
    first = await anext(captions)
    source.put(final(1, "Turn on. The lamp is red. Yes."))
    *_, last = await rest(translated)
    assert (first.text, first.is_final, first.number) == ("de Turn on.", False, 3)
    assert (last.text, last.is_final, last.number) == ("de Turn on. de The lamp is red. de Yes.", True, 5)
    assert (last.utterance, last.start_s) == (1, 1)
    event = json.loads(last.frame.partition("data: ")[2])
    assert (event["language_code"], event["translated"], event["reason"]) == ("de", True, "")
    assert translator.asked == [(["Turn on."], "English"), (["The lamp is red.", "Yes."], "English")]


async def test_what_has_no_words_stays_as_it_is():
    """There is nothing to ask for."""
    source, translated, translator = begun()
    source.put(final(1, "…"))
    (caption,) = await rest(translated)
    assert (caption.text, caption.reason, translator.asked) == ("…", "no_words", [])


async def test_words_of_the_next_utterance_before_a_final_keep_their_own_sentences():
    """Each utterance has its own translation."""
    source, translated, _ = begun()
    source.put(words(1, "One. And"))
    await settled()
    source.put(words(2, "Two. And"))
    await settled()
    source.put(final(1, "One. And one."))
    source.put(final(2, "Two. And two."))
    finals = [caption.text for caption in await rest(translated) if caption.is_final]
    assert finals == ["de One. de And one.", "de Two. de And two."]


async def test_each_final_is_asked_for_once_however_many_read():
    """What came while a translation was made is asked for together."""
    source, translated, translator = begun()
    readers = [joined(translated.captions) for _ in range(50)]
    translator.let.clear()
    source.put(final(1, "one"))
    await settled()
    source.put(final(2, "two"))
    source.put(final(3, "three"))
    translator.let.set()
    assert [caption.text for caption in await rest(translated)] == ["de one", "de two", "de three"]
    assert [texts for texts, _ in translator.asked] == [["one"], ["two", "three"]]
    for reader in readers:
        reader.end(EndReason.SESSION)
        assert len([caption async for caption in reader.captions()]) == 3


async def test_a_failure_shows_what_was_said_and_says_so():
    """The next final is tried again."""
    source, translated, translator = begun()
    translator.fails = True
    source.put(final(1, "one"))
    await settled()
    translator.fails = False
    source.put(final(2, "two"))
    first, second = await rest(translated)
    assert (first.text, first.reason, first.language) == ("one", "endpoint", "English")
    assert (second.text, second.reason) == ("de two", "")


async def test_what_waits_for_a_slow_translator_is_bounded():
    """The oldest of more than 20 are shown as they were said, in their order."""
    source, translated, translator = begun()
    translator.let.clear()
    source.put(final(1, "1"))
    await settled()
    for number in range(2, 30):
        source.put(final(number, str(number)))
    translator.let.set()
    captions = await rest(translated)
    assert [caption.utterance for caption in captions] == [*range(1, 30)]
    assert [caption.utterance for caption in captions if caption.reason] == [*range(2, 10)]
    assert [len(texts) for texts, _ in translator.asked] == [1, 20]


async def test_more_finals_than_are_kept_end_no_translation():
    """Captions that were dropped before they were taken are missing, for one who joins late too."""
    source, translated, translator = begun()
    translator.let.clear()
    source.put(final(1, "1"))
    await settled()
    for number in range(2, 502):
        source.put(final(number, str(number)))
    translator.let.set()
    while translated.captions.newest < source.newest:
        await settled()
    source.put(final(502, "502"))
    assert (await rest(translated))[-1].text == "de 502"


async def test_a_reader_gets_the_last_translation_after_the_session_has_ended():
    """A reader is not ended before that."""
    source, translated, translator = begun()
    translator.let.clear()
    source.put(final(1, "one"))
    await settled()
    task = asyncio.ensure_future(rest(translated))
    await settled()
    assert not task.done()
    translator.let.set()
    assert [caption.text for caption in await task] == ["de one"]
    assert source.readers == set()


async def test_nothing_is_translated_before_the_first_reader_or_after_the_last_link():
    """A link that nobody reads costs nothing."""
    sharing, translator = Sharing(), Translator()
    part = SharedPart(Session(), "me", sharing)
    token = sharing.share("live_1", "me", 60, {GERMAN: translator}).token
    part.completed(final_message("one"))
    await settled()
    assert translator.asked == []
    with sharing.reading(token, 0, "German") as reader:
        assert (await anext(reader.captions())).text == "de one"
    sharing.revoke("live_1", "me", token)
    part.completed(final_message("two", 2))
    await settled()
    assert [texts for texts, _ in translator.asked] == [["one"]]
    assert part.translations == {}


async def test_a_reader_has_the_languages_of_its_link_alone():
    """What a link offers is said; two links of a session share a translation."""
    sharing = Sharing()
    part = SharedPart(Session(), "me", sharing)
    german, both, none = (
        sharing.share("live_1", "me", 60, {languages.find(tag): Translator() for tag in tags}).token
        for tags in (["de"], ["de", "fr"], [])
    )
    assert sharing.link(german).captions_in("de") is sharing.link(both).captions_in("German")
    assert sharing.link(none).captions is part.captions
    with pytest.raises(InvalidValue, match="It offers: de"):
        sharing.link(german).captions_in("fr")
    with pytest.raises(InvalidValue, match="It offers: none"):
        sharing.link(none).captions_in("de")


async def test_a_session_has_a_bounded_number_of_languages():
    """The languages of all of its links count, each once."""
    sharing = Sharing()
    SharedPart(Session(), "me", sharing)
    sharing.share("live_1", "me", 60, {languages.find(tag): Translator() for tag in ("de", "fr", "es", "it")})
    sharing.share("live_1", "me", 60, {GERMAN: Translator()})
    with pytest.raises(Overloaded):
        sharing.share("live_1", "me", 60, {languages.find("nl"): Translator()})


async def test_a_reader_who_comes_back_goes_on_after_its_event():
    """The ids are those of what was said, also where it changes its language."""
    source, translated, _ = begun()
    for number in (1, 2, 3):
        source.put(final(number, str(number)))
    await settled()
    again = Reader(translated.captions, after=2)
    assert (await anext(again.captions())).text == "de 3"
