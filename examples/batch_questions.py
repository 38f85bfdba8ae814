"""A batch of questions with a progress bar; a failing one does not touch the others."""

from __future__ import annotations

import rtlang as rt

QUESTIONS = ["What is the capital of France?", "", "How many days has a week?", "What is 2 + 2?"]


@rt.function
def answer(s: rt.ProgramState, question: str) -> str:
    if not question:
        raise ValueError("an empty question")
    s += rt.system("You are a helpful assistant.")
    s += rt.user(question)
    s += rt.assistant(rt.gen("answer", max_tokens=24))
    text: str = s["answer"]
    return text


def main() -> None:
    states = answer.run_batch(
        [{"question": q} for q in QUESTIONS], temperature=0, progress_bar=True
    )
    for question, state in zip(QUESTIONS, states, strict=True):
        print(f"{question or '(empty)'} -> {state.error or state.value}")


if __name__ == "__main__":
    main()
