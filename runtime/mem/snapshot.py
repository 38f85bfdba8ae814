"""The radix tree as data, for whoever looks at it."""

from __future__ import annotations

import heapq
from array import array
from typing import Any

from rtlang.runtime.mem.radix_cache import RadixCache


def tree_snapshot(cache: RadixCache, *, max_nodes: int, max_ids: int) -> dict[str, Any]:
    """At most ``max_nodes`` nodes, those first that were used last, each with its parent.

    ``nodes``: id and parent (-1: none) by position in the list, parents first; ``ids``: the
    node's first ``max_ids`` tokens; ``age``: 0 for the latest use, 1 for the oldest shown.
    ``num_nodes``: all there are.
    """
    everything = list(cache.walk())
    # A child is never newer than its parent, so the newest ones have all their parents with them;
    # of equals the parent comes first, as it does in a walk.
    order = heapq.nlargest(
        max_nodes, range(len(everything)), key=lambda at: (everything[at].stamp, -at)
    )
    shown = [everything[at] for at in order]
    numbers = {id(node): number for number, node in enumerate(shown)}
    newest = max((node.stamp for node in shown), default=0)
    oldest = min((node.stamp for node in shown), default=0)
    span = max(newest - oldest, 1)
    nodes = []
    for node in shown:
        ids = array("i")
        ids.frombytes(node.key[: 4 * max_ids])
        nodes.append(
            {
                "parent": numbers.get(id(node.parent), -1),  # roots hold no token
                "num_tokens": node.num_tokens,
                "ids": ids.tolist(),
                "locks": node.lock_ref,
                "hits": node.hits,
                "age": (newest - node.stamp) / span,
                "namespace": node.namespace,
            }
        )
    return {"nodes": nodes, "num_nodes": len(everything), "num_tokens": cache.total_len}
