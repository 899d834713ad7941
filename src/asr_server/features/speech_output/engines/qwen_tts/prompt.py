"""The talker's prompt for a sentence, as `generate` of the SDK composes it.

Two streams are added up: text and codes. For a named voice all of the text comes first, and codes afterwards. For a
voice to imitate text and codes go side by side, as the SDK has it for each of the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from asr_server.core.errors import InvalidValue, MissingParameter, UnsupportedLanguage, UnsupportedValue
from asr_server.engine.qwen_asr.prompt import clean, control_tokens
from asr_server.engine.torch import memory
from asr_server.features.speech_output.engines.protocol import Sentence
from asr_server.features.speech_output.engines.qwen_tts.loading import SpeechModelParts
from asr_server.features.speech_output.engines.qwen_tts.model import BASE, LANGUAGES, Abilities

# "<|im_start|>", "assistant" and a newline before a text; "<|im_end|>" and a newline after it, and the former again.
_ROLE, _TURN, _TURNS = 3, 2, 5
_CHINESE = "chinese"


@dataclass(frozen=True, slots=True)
class PromptIds:
    """A sentence in ids of text tokens and of codes."""

    role: tuple[int, ...]
    text: tuple[int, ...]
    instructions: tuple[int, ...]
    reference: tuple[int, ...]  # the words of the voice to imitate, () without them
    # codes that name language and voice; None stands for the embedding of a voice to imitate
    header: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class VoicePrompt:
    """The data of a voice to imitate."""

    embedding: torch.Tensor  # (d,)
    frames: torch.Tensor | None  # its recording (n, codebooks), if its words are known


@dataclass(frozen=True, slots=True, eq=False)
class SpeechPrompt:
    """A prompt in embeddings."""

    embeds: torch.Tensor  # (n, d), run before the first frame
    trailing: torch.Tensor  # (m, d), text that is added to the frames, one by one


class SpeechPromptBuilder:
    """Turns sentences into ids on any machine, and ids into embeddings on the model's device."""

    def __init__(self, parts: SpeechModelParts, abilities: Abilities, frame_embeds: Any) -> None:
        """`frame_embeds`: frames (n, codebooks) to the sums of their embeddings (n, d)."""
        self._tokenizer = parts.tokenizer
        self._control = control_tokens(parts.tokenizer.get_added_vocab())
        self._talker, self._device = parts.talker, parts.device
        self._codes = parts.config.talker_config
        self._abilities = abilities
        self._frame_embeds = frame_embeds
        special = (parts.config.tts_bos_token_id, parts.config.tts_eos_token_id, parts.config.tts_pad_token_id)
        with torch.inference_mode():
            self._begin, self._end, self.pad = self._text(special).split(1)

    def ids(self, sentence: Sentence) -> PromptIds:
        """Raises what is wrong with the sentence."""
        text = clean(self._control, sentence.text)
        if not text:
            raise InvalidValue("The text to speak is empty.", param="input")
        self._check(sentence)
        ids = self._tokens(f"<|im_start|>assistant\n{text}<|im_end|>\n<|im_start|>assistant\n")
        instructions = clean(self._control, sentence.instructions)
        words = clean(self._control, sentence.sample.text) if sentence.sample is not None else ""
        reference = self._tokens(f"<|im_start|>assistant\n{words}<|im_end|>\n")[_ROLE:-_TURN] if words else ()
        return PromptIds(
            role=ids[:_ROLE],
            text=ids[_ROLE:-_TURNS],
            instructions=self._tokens(f"<|im_start|>user\n{instructions}<|im_end|>\n") if instructions else (),
            reference=reference,
            header=self._header(sentence),
        )

    def _check(self, sentence: Sentence) -> None:
        if sentence.sample is None and self._abilities.kind == BASE:
            raise MissingParameter("This model imitates voices: it needs a recording of one.", param="voice")
        if sentence.sample is not None and self._abilities.kind != BASE:
            raise UnsupportedValue("This model has its own voices and imitates none.", param="voice")
        if sentence.sample is None and sentence.voice not in self._abilities.speakers:
            raise UnsupportedValue(
                f"This model has no such voice; it has {', '.join(self._abilities.speakers)}.", param="voice"
            )
        if sentence.instructions and not self._abilities.follows_instructions:
            raise UnsupportedValue(
                "This model follows no instructions; the 1.7B CustomVoice model does.", param="instructions"
            )
        if LANGUAGES.get(sentence.language) not in self._abilities.languages:
            raise UnsupportedLanguage("This model does not speak the language.", param="language")

    def _header(self, sentence: Sentence) -> tuple[int | None, ...]:
        codes, language = self._codes, LANGUAGES[sentence.language]
        speaker: int | None = None
        if sentence.sample is None:
            speaker = codes.spk_id[sentence.voice]
            dialect = (codes.spk_is_dialect or {}).get(sentence.voice)
            language = dialect if dialect and language == _CHINESE else language
        named = (codes.codec_think_id, codes.codec_think_bos_id, codes.codec_language_id[language])
        return (*named, codes.codec_think_eos_id, speaker, codes.codec_pad_id, codes.codec_bos_id)

    def build(self, ids: PromptIds, voice: VoicePrompt | None) -> SpeechPrompt:
        """Return the embeddings; `voice` where the sentence has a voice to imitate."""
        header = self._header_embeds(ids.header, voice)
        before = [self._text((*ids.instructions, *ids.role))]
        before += [torch.cat([self.pad.expand(len(header) - 2, -1), self._begin]) + header[:-1]]
        if voice is None:
            embeds, trailing = self._text_first(ids), self.pad
        elif voice.frames is None:
            text = torch.cat([self._text(ids.text), self._end])
            embeds, trailing = text[:1] + header[-1:], text[1:]
        else:
            embeds, trailing = self._side_by_side(ids, voice.frames, header[-1:])
        return SpeechPrompt(torch.cat([*before, embeds]), trailing)

    def _header_embeds(self, header: tuple[int | None, ...], voice: VoicePrompt | None) -> torch.Tensor:
        embeds = self._code(tuple(code or 0 for code in header))
        if voice is not None:
            place = header.index(None)
            embeds = torch.cat([embeds[:place], voice.embedding.to(embeds)[None], embeds[place + 1 :]])
        return embeds

    def _text_first(self, ids: PromptIds) -> torch.Tensor:
        text = torch.cat([self._text(ids.text), self._end]) + self._code((self._codes.codec_pad_id,))
        return torch.cat([text, self.pad + self._code((self._codes.codec_bos_id,))])

    def _side_by_side(
        self, ids: PromptIds, frames: torch.Tensor, begin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the voice's words and frames, then as much of the text as there is room for; the rest is trailing."""
        text = torch.cat([self._text((*ids.reference, *ids.text)), self._end])
        codes = torch.cat([begin, self._frame_embeds(frames)])
        beside, trailing = text[: len(codes)], text[len(codes) :]
        beside = torch.cat([beside, self.pad.expand(len(codes) - len(beside), -1)])
        return beside + codes, trailing if len(trailing) else self.pad

    def _text(self, ids: tuple[int, ...]) -> torch.Tensor:
        """Text tokens (n,) to embeddings (n, d)."""
        uploaded = memory.upload(torch.tensor(ids, dtype=torch.long), self._device)
        embeds: torch.Tensor = self._talker.text_projection(self._talker.get_text_embeddings()(uploaded))
        return embeds

    def _code(self, ids: tuple[int, ...]) -> torch.Tensor:
        uploaded = memory.upload(torch.tensor(ids, dtype=torch.long), self._device)
        return F.embedding(uploaded, self._talker.get_input_embeddings().weight)

    def _tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text).input_ids)
