"""Forms: every field has the server's name and passes the server's own check."""

import json

import pytest

from asr_server.api.http.fields import SubtitleForm, TranscriptionForm, TranslationForm
from asr_server.client.options import FileOptions, SubtitleOptions, TranslationOptions

HEARD = {"prompt": "the kitchen", "hotwords": ("Zürich", "Qwen"), "model": "demo"}


@pytest.mark.parametrize(
    ("options", "form"),
    [
        (FileOptions(language="en", response_format="srt", **HEARD), TranscriptionForm),
        (
            SubtitleOptions(language="en", format="vtt", mode="fast", max_line_chars=30, max_lines=3, **HEARD),
            SubtitleForm,
        ),
        (TranslationOptions(to="de", bilingual=True, response_format="vtt", max_lines=1, **HEARD), TranslationForm),
    ],
)
def test_the_server_knows_every_field(options, form):
    """A name that the server does not know would be ignored in silence."""
    assert set(options.form) <= set(form.model_fields)
    read = form.model_validate(options.form)
    assert (read.prompt, tuple(read.hotwords), read.model) == tuple(HEARD.values())


def test_the_values_arrive_as_they_were_meant():
    """Numbers, truth values and the glossary go through text."""
    cues = SubtitleForm.model_validate(SubtitleOptions(mode="fast", max_line_chars=30, max_lines=3).form)
    assert (cues.mode, cues.max_line_chars, cues.max_lines) == ("fast", 30, 3)
    wanted = TranslationOptions(language="en", to="pt-BR", bilingual=True, glossary={"kitchen": "Küche"})
    other = TranslationForm.model_validate(wanted.form)
    assert (other.source_language, other.language, other.bilingual) == ("en", "pt-BR", True)
    assert other.glossary == {"kitchen": "Küche"}


def test_what_is_left_out_is_not_sent():
    """An empty field would be a value to some servers."""
    assert TranslationOptions().form.keys().isdisjoint({"source_language", "glossary", "prompt"})
    assert json.dumps(SubtitleOptions().form).count('""') == 0
