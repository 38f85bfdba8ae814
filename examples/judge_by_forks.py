"""Branch, solve, merge: judges look at one essay from several sides, one verdict merges them."""

from __future__ import annotations

import rtlang as rt

ESSAY = (
    "Cities should plant more trees. Trees cool the streets, they clean the air, and people who "
    "walk under trees are happier. A tree costs little and lives for a hundred years."
)
SIDES = ["the clarity of its language", "the strength of its arguments", "its originality"]


@rt.function
def judge(s: rt.ProgramState, essay: str) -> str:
    s += rt.system("You judge essays. You are brief and fair.")
    s += rt.user(f"Here is an essay:\n{essay}")
    s += rt.assistant("I have read it.")
    forks = s.fork(len(SIDES))
    for branch, side in zip(forks, SIDES, strict=True):
        branch += rt.user(f"Judge {side} in one sentence.")
        branch += rt.assistant(rt.gen("judgement", max_tokens=32, stop="\n"))
    forks.join()
    summary = "\n".join(f"- {side}: {j}" for side, j in zip(SIDES, s["judgement"], strict=True))
    s += rt.user(f"The judgements are:\n{summary}\nWhat is the grade: good, fair or poor?")
    s += rt.assistant(rt.select("grade", ["good", "fair", "poor"]))
    grade: str = s["grade"]
    return grade


def main() -> None:
    state = judge.run(ESSAY, temperature=0)
    for side, judgement in zip(SIDES, state["judgement"], strict=True):
        print(f"{side}: {judgement}")
    print("grade:", state.value)
    for call in state.usage.calls:
        print(call.kind, call.name, "cached", call.cached_tokens, "computed", call.computed_tokens)


if __name__ == "__main__":
    main()
