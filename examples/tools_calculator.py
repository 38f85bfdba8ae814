"""Tools: the model calls Python functions by their signatures, and goes on with the results."""

from __future__ import annotations

from typing import Literal

import rtlang as rt


@rt.tool
def calculate(a: float, operation: Literal["+", "-", "*", "/"], b: float) -> str:
    """Calculate with two numbers.

    Args:
        a: the first number
        operation: what to do with them
        b: the second number
    """
    if operation == "/":
        return f"{a / b:g}"  # a division by zero is told to the model
    value = a + b if operation == "+" else a - b if operation == "-" else a * b
    return f"{value:g}"


#: The first turn has to call; each call is valid by construction, even a small model's.
TOOLS = rt.Tools([calculate], choice="required", parallel=False, max_rounds=2)


@rt.function
def solve(s: rt.ProgramState, question: str) -> str:
    s += rt.system(TOOLS.describe())
    s += rt.user(question)
    s += rt.assistant(rt.gen("answer", max_tokens=64, tools=TOOLS))
    answer: str = s["answer"]
    return answer.strip()


def main() -> None:
    questions = ["What is 8 * 9?", "What is 100 - 64?", "What is 7.5 + 4?"]
    states = solve.run_batch([{"question": q} for q in questions], temperature=0)
    for question, state in zip(questions, states, strict=True):
        print(f"{question} -> {state.value}")
        for call in state.get_meta_info("answer")["tool_calls"]:
            print(f"  {call['name']}({call['arguments']}) = {call['result'] or call['error']}")
        print(
            "  cached, computed:", [(c.cached_tokens, c.computed_tokens) for c in state.usage.calls]
        )


if __name__ == "__main__":
    main()
