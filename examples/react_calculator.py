"""ReAct: the model thinks, the host calculates, the model goes on with the result."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

import rtlang as rt

EXAMPLES = """\
Question: What is 3 times 4 plus 5?
Action: calculate(3 * 4 + 5)
Result: 17
Answer: 17

Question: A box holds 12 eggs. How many eggs are in 7 boxes?
Action: calculate(12 * 7)
Result: 84
Answer: 84

"""
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def calculate(text: str) -> str:
    """The value of an arithmetic expression, or what is wrong with it."""

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError("only numbers and + - * / are known")

    try:
        return f"{value(ast.parse(text, mode='eval').body):g}"
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        return f"error: {error}"


@rt.function
def solve(s: rt.ProgramState, question: str) -> str:
    s += EXAMPLES + f"Question: {question}\nAction: calculate("
    s += rt.gen("expression", max_tokens=24, stop=[")", "\n"])
    s += f")\nResult: {calculate(s['expression'])}\nAnswer:"
    s += rt.gen("answer", max_tokens=8, stop="\n")
    answer: str = s["answer"]
    return answer.strip()


def main() -> None:
    questions = [
        "What is 8 times 9?",
        "A train has 14 cars with 20 seats each. How many seats are there?",
    ]
    for question, state in zip(
        questions, solve.run_batch([{"question": q} for q in questions], temperature=0), strict=True
    ):
        print(f"{question}\n  {state['expression']} -> {state.value}")
        print(
            "  cached, computed:", [(c.cached_tokens, c.computed_tokens) for c in state.usage.calls]
        )


if __name__ == "__main__":
    main()
