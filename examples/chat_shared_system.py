"""Multi-turn chats that share a system prompt: it is computed once, for all of them."""

from __future__ import annotations

import rtlang as rt

SYSTEM = (
    "You are the assistant of a small library. You help readers to find books, you explain how "
    "lending works, and you keep every answer to a single short sentence."
)
QUESTIONS = [
    ["Which book about whales do you know?", "Who wrote it?"],
    ["How long can I keep a book?", "And if I am late?"],
    ["Do you have books for children?", "Name one, please."],
]


@rt.function
def chat(s: rt.ProgramState, questions: list[str]) -> list[str]:
    s += rt.system(SYSTEM)
    for i, question in enumerate(questions):
        s += rt.user(question)
        s += rt.assistant(rt.gen(f"answer_{i}", max_tokens=24))
    return [s[f"answer_{i}"] for i in range(len(questions))]


def main() -> None:
    states = chat.run_batch([{"questions": q} for q in QUESTIONS], temperature=0)
    for questions, state in zip(QUESTIONS, states, strict=True):
        for question, answer in zip(questions, state.value, strict=True):
            print(f"Q: {question}\nA: {answer}\n")
    for state in states:
        print([(c.name, c.cached_tokens, c.computed_tokens) for c in state.usage.calls])


if __name__ == "__main__":
    main()
