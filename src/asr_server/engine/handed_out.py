"""The tokens of a row that were handed out, so that another engine can go on with it where the first one ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from asr_server.engine.protocol import Tokens, Utterance


class HandedOut:
    """Passes on the tokens of one row, each once, whichever engines they come from. An engine that gets tokens as the
    prefix of a row sends them again."""

    def __init__(self, on_tokens: Callable[[Tokens], None]) -> None:
        self._on_tokens = on_tokens
        self.ids: tuple[int, ...] = ()
        self._chars = 0
        self._skip_ids = self._skip_chars = 0

    def resumed(self, utterance: Utterance) -> Utterance:
        """Return the row such that its answer begins with the tokens that were handed out."""
        if len(self.ids) <= len(utterance.prefix):
            return utterance
        return replace(utterance, prefix=self.ids, prefix_text=None)

    def begin_again(self) -> None:
        """Expect the tokens of an answer from its beginning."""
        self._skip_ids, self._skip_chars = len(self.ids), self._chars

    def hand_out(self, tokens: Tokens) -> None:
        """Pass on the tokens that are new."""
        new = Tokens(tokens.ids[self._skip_ids :], tokens.logprobs[self._skip_ids :], tokens.text[self._skip_chars :])
        self._skip_ids -= len(tokens.ids) - len(new.ids)
        self._skip_chars -= len(tokens.text) - len(new.text)
        if new.ids or new.text:
            self.ids += new.ids
            self._chars += len(new.text)
            self._on_tokens(new)


def joined(parts: list[Tokens]) -> Tokens:
    """Return the deltas of several steps as one."""
    ids = tuple(token for part in parts for token in part.ids)
    logprobs = tuple(one for part in parts for one in part.logprobs)
    return Tokens(ids, logprobs, "".join(part.text for part in parts))
