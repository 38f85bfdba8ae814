"""Facts as a typed value: whatever the model prefers, what comes out is a ``City``."""

from __future__ import annotations

import dataclasses
from typing import Literal

import rtlang as rt
from rtlang.combinators import cap, digit, one_of, optional


@dataclasses.dataclass
class City:
    country: Literal["France", "Germany", "Italy", "Japan", "Spain"]
    population: int
    capital: bool


TIME = cap("hour", digit + optional(digit)) + ":" + digit + digit + one_of(" am", " pm")


@rt.function
def facts(s: rt.ProgramState, name: str) -> City:
    s += rt.system("You know geography. You answer in JSON.")
    s += rt.user(f"Tell me about the city of {name}.")
    s += rt.assistant(rt.gen("city", type=City, max_tokens=96, whitespace=1))
    s += rt.user("How many days should one stay, and when does the day start there?")
    s += rt.assistant(rt.gen("plan", pattern=cap("days", digit) + " days, from " + TIME))
    city: City = s["city"]
    return city


def main() -> None:
    for name in ("Paris", "Rome"):
        state = facts.run(name, temperature=0)
        print(f"{name}: {state.value}")
        print(f"  {state['plan']!r}: {state['days']} days, hour {state['hour']}")


if __name__ == "__main__":
    main()
