"""The options of a ``select`` as a token trie, cut into chains that one request each can score."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

Ids = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Chain:
    """Trie nodes in a row without a branch: ``path`` leads to it, ``run`` are its tokens.

    Scoring it means to read the log-probabilities of ``run[1:]`` and, after the last token of
    ``run``, those of ``next_ids`` (where the trie branches; empty at a leaf). The first token of
    ``run`` is scored by the chain that ends at ``path``. The root chain has no ``run``.
    """

    path: Ids
    run: Ids
    next_ids: Ids


def chains(options: Sequence[Sequence[int]]) -> list[Chain]:
    """All chains of the trie that have something to score, parents first.

    Each distinct token of the trie is in at most one ``run``: a last token of its own has nothing
    to predict, so it is scored by its parent alone.
    """
    children: dict[Ids, list[int]] = {}
    for option in options:
        ids = tuple(option)
        for end, token in enumerate(ids):
            following = children.setdefault(ids[:end], [])
            if token not in following:
                following.append(token)
    found = [Chain((), (), tuple(children.get((), ())))]
    for chain in found:  # grows while we walk it
        prefix = chain.path + chain.run
        for token in chain.next_ids:
            run: Ids = (token,)
            while len(following := children.get(prefix + run, [])) == 1:
                run += (following[0],)
            if following or len(run) > 1:
                found.append(Chain(prefix, run, tuple(following)))
    return found
