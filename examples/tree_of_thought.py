"""Tree of thought: every thought branches in two; a score decides which leaf is told."""

from __future__ import annotations

import rtlang as rt

DEPTH = 2


def grow(s: rt.ProgramState, depth: int) -> list[rt.ProgramState]:
    """Leaves of the tree below ``s``. All branches of a level run at the same time."""
    if depth == 0:
        return [s]
    leaves: list[rt.ProgramState] = []
    for i, branch in enumerate(s.fork(2)):
        branch += f"\nStep {DEPTH - depth + 1}:"
        branch += rt.gen("thought", max_tokens=20, temperature=0.8, seed=i, stop="\n")
        leaves += grow(branch, depth - 1)
    return leaves


@rt.function
def think(s: rt.ProgramState, question: str) -> str:
    s += f"Question: {question}\nLet us think step by step."
    leaves = grow(s, DEPTH)
    best, best_score = "", float("-inf")
    for leaf in leaves:
        leaf += "\nIs this reasoning good? Answer yes or no:"
        leaf += rt.select("good", [" yes", " no"], probs=True)
    for leaf in leaves:
        score = leaf.get_meta_info("good")["probs"][0]
        if score > best_score:
            best, best_score = leaf.text(), score
    return best


def main() -> None:
    state = think.run("How can a town of 500 people save water in summer?")
    print(state.value)
    usage = state.usage
    print(f"\n{len(usage.calls)} calls; {usage.cached_tokens} prompt tokens cached, "
          f"{usage.computed_tokens} computed")  # fmt: skip


if __name__ == "__main__":
    main()
