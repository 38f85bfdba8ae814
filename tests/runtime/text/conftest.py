"""Small real tokenizers, one of each kind that models have, built once a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from rtlang.runtime.hf_tokenizer import HFTokenizer

CORPUS = [
    "The cat sat on the mat. The dog sat on the log.",
    "Hello there, hello world! What is the time? It is ten past ten.",
    "Grüße aus München, 日本語 と 中文, emoji 🙂🙃 and ünïcödé.",
    "user assistant system tool answer question call name arguments end stop",
] * 4
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Llama 2's manner: BOS written by the template, roles in plain text, a space behind a token.
INST = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)
SENTENCEPIECE_KINDS = ("sp-legacy", "sp-first", "sp-always", "sp-never")
KINDS = ("byte-level", *SENTENCEPIECE_KINDS)


def save(folder: Path, fast: Tokenizer, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    fast.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def special(content: str, **options: bool) -> AddedToken:
    return AddedToken(content, special=True, normalized=False, **options)


def byte_level() -> Tokenizer:
    fast = Tokenizer(BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|eos|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    fast.train_from_iterator(CORPUS, trainer)
    fast.add_special_tokens([special("<|end|>", rstrip=True), special("<|pad|>", lstrip=True)])
    fast.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return fast


def sentencepiece(kind: str) -> Tokenizer:
    """BPE over pieces with a space mark, bytes as fallback; ``kind``: where a dummy space goes."""
    trained = Tokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trained.train_from_iterator(CORPUS, BpeTrainer(vocab_size=260, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    # Non-ASCII characters are left to the bytes.
    learned = [p for p in model["vocab"] if p.replace("▁", "").isascii()]
    pieces = [*names, *learned, "▁▁", "\n\n"]
    if "\n" not in pieces:
        pieces.append("\n")
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    merges = [(a, b) for a, b in model["merges"] if a in vocab and b in vocab and a + b in vocab]
    merges += [("▁", "▁"), ("\n", "\n")]
    fast = Tokenizer(BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True))
    if kind == "sp-legacy":
        fast.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    elif kind == "sp-never":
        fast.normalizer = normalizers.Replace(" ", "▁")
    else:
        scheme = kind.removeprefix("sp-")
        fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind != "sp-never":
        steps.append(decoders.Strip(" ", 1, 0))
    fast.decoder = decoders.Sequence(steps)
    fast.add_special_tokens([special("<unk>"), special("<s>"), special("</s>")])
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", vocab["<s>"])]
    )
    return fast


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("tokenizers")

    def make(kind: str) -> Path:
        path = root / kind
        if path.exists():
            return path
        if kind == "byte-level":
            return save(path, byte_level(), eos_token="<|im_end|>", chat_template=CHATML)
        return save(
            path,
            sentencepiece(kind),
            bos_token="<s>",
            eos_token="</s>",
            unk_token="<unk>",
            chat_template=INST,
        )

    return make


@pytest.fixture(scope="session")
def load(folder: Callable[[str], Path]) -> Callable[[str], HFTokenizer]:
    """A tokenizer by kind, made once."""
    made: dict[str, HFTokenizer] = {}

    def get(kind: str) -> HFTokenizer:
        if kind not in made:
            made[kind] = HFTokenizer(folder(kind))
        return made[kind]

    return get


@pytest.fixture(scope="session", params=KINDS)
def any_tokenizer(
    request: pytest.FixtureRequest, load: Callable[[str], HFTokenizer]
) -> HFTokenizer:
    return load(request.param)


@pytest.fixture(scope="session", params=SENTENCEPIECE_KINDS)
def sp_tokenizer(request: pytest.FixtureRequest, load: Callable[[str], HFTokenizer]) -> HFTokenizer:
    return load(request.param)


@pytest.fixture(scope="session")
def byte_level_tokenizer(load: Callable[[str], HFTokenizer]) -> HFTokenizer:
    return load("byte-level")
