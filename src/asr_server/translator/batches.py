"""Divides the lines into batches, one for each prompt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Small models lose count in long prompts, whatever the number of lines.
_MAX_CHARACTERS = 4000


def batches(texts: Sequence[str], wanted: Iterable[int], size: int) -> list[list[int]]:
    """The `wanted` indices of `texts` in order, in groups of at most `size` lines and 4000 characters.

    A line longer than that is a group of its own.
    """
    groups: list[list[int]] = []
    free = 0
    for index in wanted:
        free -= len(texts[index])
        if not groups or len(groups[-1]) >= size or free < 0:
            groups.append([])
            free = _MAX_CHARACTERS - len(texts[index])
        groups[-1].append(index)
    return groups
