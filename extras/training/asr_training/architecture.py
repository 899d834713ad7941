"""The demo architecture: tokenizer, processor, configuration, random weights.

Qwen3-ASR in miniature: 4 encoder layers and 3 LLM layers of width 192, the released windows, prompt and tags.
"""

from __future__ import annotations

import random
from typing import Any

from asr_server.core.audio import SAMPLE_RATE
from asr_server.engine.qwen_asr.tokenizer import ASR_TEXT
from asr_training.network import Network
from asr_training.vocabulary import ENGLISH_WORDS, MANDARIN_ITEMS, Language
from tools.checkpoints.vocabulary import AUDIO_END, AUDIO_PAD, AUDIO_START, END_OF_TEXT, END_OF_TURN, TIMESTAMP

CONTROL_TOKENS = (END_OF_TEXT, "<|im_start|>", END_OF_TURN, AUDIO_START, AUDIO_END, AUDIO_PAD)
TEXT_TOKENS = (ASR_TEXT, TIMESTAMP)
VOCABULARY_LIMIT = 720

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{% if c.type == 'audio' %}{{ '<|audio_start|><|audio_pad|><|audio_end|>' }}{% else %}{{ c.text }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

ENCODER = {
    "num_mel_bins": 128,
    "encoder_layers": 4,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 768,
    "d_model": 192,
    "n_window": 50,  # half a convolution piece: 50 x 2 = 100 frames, 1 s
    "n_window_infer": 800,  # attention window: 800 frames, 8 s, 104 tokens
    "output_dim": 192,
    "downsample_hidden_size": 32,
    "max_source_positions": 1500,
}
DECODER = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [8, 8, 8]},
}


def untrained() -> Network:
    """A network with random weights; the caller seeds torch."""
    from transformers import GenerationConfig, WhisperFeatureExtractor

    from tools.sdk import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

    words = tokenizer()
    ids = {token: words.convert_tokens_to_ids(token) for token in (*CONTROL_TOKENS, *TEXT_TOKENS)}
    extractor = WhisperFeatureExtractor(
        feature_size=128, sampling_rate=SAMPLE_RATE, hop_length=160, n_fft=400, chunk_length=30
    )
    config = Qwen3ASRConfig(
        thinker_config={
            "audio_config": ENCODER,
            "text_config": {**DECODER, "vocab_size": len(words)},
            "audio_token_id": ids[AUDIO_PAD],
            "audio_start_token_id": ids[AUDIO_START],
            "audio_end_token_id": ids[AUDIO_END],
        },
        support_languages=[language.value for language in Language],
    )
    config.timestamp_token_id, config.timestamp_segment_time = ids[TIMESTAMP], 80
    model = Qwen3ASRForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[ids[END_OF_TURN], ids[END_OF_TEXT]], pad_token_id=ids[END_OF_TEXT], do_sample=False
    )
    processor = Qwen3ASRProcessor(feature_extractor=extractor, tokenizer=words, chat_template=CHAT_TEMPLATE)
    return Network(model, processor)


def tokenizer() -> Any:
    """A byte-level BPE tokenizer of a few hundred pieces learned from the vocabulary, with the released tags."""
    from tokenizers import (  # no types published
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import Qwen2TokenizerFast

    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learned.train_from_iterator(
        _tokenizer_corpus(),
        trainers.BpeTrainer(vocab_size=VOCABULARY_LIMIT, initial_alphabet=alphabet, special_tokens=[]),
    )
    learned.add_special_tokens(list(CONTROL_TOKENS))
    learned.add_tokens(list(TEXT_TOKENS))
    return Qwen2TokenizerFast(
        tokenizer_object=learned,
        unk_token=None,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        additional_special_tokens=list(CONTROL_TOKENS[1:]),
        extra_special_tokens={
            "audio_token": AUDIO_PAD,
            "audio_bos_token": AUDIO_START,
            "audio_eos_token": AUDIO_END,
        },
    )


def _tokenizer_corpus() -> list[str]:
    words = [*ENGLISH_WORDS, *MANDARIN_ITEMS, "language", "None", *(language.value for language in Language)]
    rng = random.Random(0)
    return [" ".join(rng.sample(words, len(words))) for _ in range(200)]
