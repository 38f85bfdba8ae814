"""The demo: an agent that plans, works out branches side by side, and concludes.

make demo        or        rtlang run examples/demo.py
"""

from __future__ import annotations

import rtlang as rt

SYSTEM = "You are a travel guide. You answer in one or two short sentences."
TOPICS = ["the best season to go", "one dish to try", "one place to see"]


@rt.function
def plan_trip(s: rt.ProgramState, city: str) -> str:
    s += rt.system(SYSTEM)
    s += rt.user(f"I want to travel to {city}. What is it known for?")
    s += rt.assistant(rt.gen("known_for", max_tokens=48))
    forks = s.fork(len(TOPICS))  # what was said so far is computed once for all three
    for branch, topic in zip(forks, TOPICS, strict=True):
        branch += rt.user(f"Tell me about {topic}.")
        branch += rt.assistant(rt.gen("tip", max_tokens=32))
    forks.join()
    tips = "\n".join(f"- {topic}: {tip}" for topic, tip in zip(TOPICS, s["tip"], strict=True))
    s += rt.user(f"Here is what you told me:\n{tips}\nShould I book now?")
    s += rt.assistant(rt.select("decision", ["Yes", "No"]) + ", because" + rt.gen("why", 24))
    decision: str = s["decision"]
    return decision


def main() -> None:
    state = plan_trip.run("Kyoto", temperature=0, stream=True)
    for text in state.text_iter():
        print(text, end="", flush=True)
    print("\n")
    print(f"{'call':<12}{'prompt':>8}{'cached':>8}{'computed':>10}{'generated':>11}")
    for call in state.usage.calls:
        name = call.name or "announcement"
        print(
            f"{name:<12}{call.prompt_tokens:>8}{call.cached_tokens:>8}"
            f"{call.computed_tokens:>10}{call.completion_tokens:>11}"
        )
    usage = state.usage
    share = usage.cached_tokens / usage.prompt_tokens
    print(f"{share:.0%} of {usage.prompt_tokens} prompt tokens came from the cache")


if __name__ == "__main__":
    main()
