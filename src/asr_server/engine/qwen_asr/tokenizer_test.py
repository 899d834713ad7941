"""The tokenizer and the chat template, against the SDK's processor."""

import json
import shutil

import pytest

from asr_server import demo
from asr_server.engine.qwen_asr.tokenizer import ChatTemplate, TextTokenizer
from tools.sdk import Qwen3ASRProcessor

pytestmark = [pytest.mark.torch, pytest.mark.nightly]


@pytest.fixture(scope="module", params=["demo", "aligner", "released"])
def directory(request):
    if request.param == "released":
        return request.getfixturevalue("released_checkpoint")
    return demo.checkpoint_path() if request.param == "demo" else demo.aligner_path()


def _processor(directory):
    return Qwen3ASRProcessor.from_pretrained(directory, fix_mistral_regex=True, local_files_only=True)


def _description(tokenizer):
    return json.loads(tokenizer.to_str())


def test_it_is_the_sdks(directory):
    """Vocabulary, merges, division of text, added tokens and their flags are equal."""
    ours, theirs = TextTokenizer.load(directory), _processor(directory).tokenizer
    assert _description(ours.library) == _description(theirs.backend_tokenizer)
    assert ours.added == {token.content: token.special for token in theirs.added_tokens_decoder.values()}


@pytest.mark.parametrize("version", ["4.56.0", "4.57.2", "4.57.3", "4.57.6", "5.0.0", None])
def test_text_is_divided_as_the_sdk_does_for_that_version(released_checkpoint, tmp_path, version):
    """transformers chooses by the version that has written a checkpoint."""
    copy = tmp_path / "checkpoint"
    shutil.copytree(released_checkpoint, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "transformers_version": version}))
    assert (
        _description(TextTokenizer.load(copy).library)["pre_tokenizer"]
        == _description(_processor(copy).tokenizer.backend_tokenizer)["pre_tokenizer"]
    )


def test_a_template_cannot_reach_the_process():
    """The file is of the checkpoint, and need not be of a friend."""
    with pytest.raises(Exception, match=r"unsafe|undefined"):
        ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}").render([])
