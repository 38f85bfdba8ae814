"""A batch of texts, each made a record: a Pydantic model gives the constraint and the value."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

import rtlang as rt


class Order(BaseModel):
    customer: str = Field(max_length=24)
    item: Literal["book", "lamp", "chair"]
    count: int = Field(ge=1, le=99)


MAILS = [
    "Hello, this is Ada. Please send me three lamps.",
    "I would like to buy a chair. Best regards, Tom Miller",
    "Could you deliver 12 books to us? Thank you! Jane",
]


@rt.function
def extract(s: rt.ProgramState, mail: str) -> Order:
    s += rt.system("You read mails and write down the order that is in them, as JSON.")
    s += rt.user(f"The mail: {mail}")
    s += rt.assistant(rt.gen("order", type=Order, max_tokens=96, whitespace=1))
    order: Order = s["order"]
    return order


def main() -> None:
    states = extract.run_batch([{"mail": mail} for mail in MAILS], temperature=0)
    for mail, state in zip(MAILS, states, strict=True):
        print(f"{mail} -> {state.error or state.value!r}")


if __name__ == "__main__":
    main()
