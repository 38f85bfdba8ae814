"""Few-shot classification: ``select`` scores the labels; the examples are computed once."""

from __future__ import annotations

import rtlang as rt

SHOTS = """\
Review: The soup was cold and the waiter rude.
Sentiment: negative

Review: A wonderful evening, we will come back!
Sentiment: positive

Review: The food was all right.
Sentiment: neutral

"""
LABELS = [" negative", " neutral", " positive"]


@rt.function
def classify(s: rt.ProgramState, review: str) -> str:
    s += SHOTS + f"Review: {review}\nSentiment:"
    s += rt.select("label", LABELS, choices_method=rt.greedy_token_selection, probs=True)
    label: str = s["label"]
    return label.strip()


def main() -> None:
    reviews = [
        "I loved every minute of it.",
        "Never again. I want my money back.",
        "It was okay, nothing special.",
    ]
    states = classify.run_batch([{"review": r} for r in reviews])
    for review, state in zip(reviews, states, strict=True):
        probs = [round(p, 3) for p in state.get_meta_info("label")["probs"]]
        print(f"{review} -> {state.value} {probs}")


if __name__ == "__main__":
    main()
