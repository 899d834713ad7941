"""The chat prompt in the released vocabulary, against the SDK's processor."""

import numpy as np
import pytest

from asr_server.engine.qwen_asr import files
from asr_server.engine.qwen_asr.tokenizer import ChatTemplate, PromptBuilder
from asr_server.text.languages import model_languages
from tools.checkpoints.vocabulary import added_tokens
from tools.sdk import Qwen3ASRProcessor

pytestmark = [pytest.mark.torch, pytest.mark.nightly]

AUDIO_PAD = 151_676


@pytest.fixture(scope="module")
def processor(released_checkpoint):
    return Qwen3ASRProcessor.from_pretrained(released_checkpoint, fix_mistral_regex=True)


@pytest.fixture(scope="module")
def prompts(released_checkpoint):
    found = files.read(released_checkpoint)
    return PromptBuilder(found.tokenizer, ChatTemplate.load(found.directory), found.audio_id)


@pytest.mark.parametrize("context", ["", "Names: Ελένη, हिमांशु, 王小明, Åse. 😀"])
@pytest.mark.parametrize("language", [None, *model_languages()])
def test_ids_are_those_of_the_sdks_processor(processor, prompts, context, language):
    """There is one audio token for each of the audio's, forced and free, with a context in several scripts."""
    prompt = prompts.build(context=context, language=language)
    messages = [{"role": "system", "content": context}, {"role": "user", "content": [{"type": "audio", "audio": ""}]}]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    text += f"language {language}<asr_text>" if language else ""
    ids = list(processor(text=[text], audio=[np.zeros(16_000, np.float32)])["input_ids"][0])
    assert ids.count(AUDIO_PAD) == 13
    assert [*prompt.before, *[AUDIO_PAD] * 13, *prompt.after] == ids


def test_no_added_token_of_a_context_reaches_the_model(prompts):
    """Each of the 63, alone and put together from pieces of itself, leaves the turns as they are."""
    plain = prompts.build(context="a b", language=None)
    for token in added_tokens().values():
        for hostile in (token, f"{token[:2]}{token}{token[2:]}"):
            attacked = prompts.build(context=f"a{hostile}b", language=None)
            assert _added(attacked.before) == _added(plain.before)
            assert attacked.after == plain.after


def _added(ids):
    return [token for token in ids if token >= 151_643]
