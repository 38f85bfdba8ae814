from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtlang.errors import ChatTemplateError, InvalidParameter, InvalidPrompt
from rtlang.runtime.chat_template import BREAK, MARK, ControlTokens, prepare_messages
from rtlang.runtime.hf_tokenizer import HFTokenizer

USER = {"role": "user", "content": "hello"}
TOOLS = (
    "{% for t in tools or [] %}<|im_start|>tool {{ t.function.name }}: "
    "{{ t.function.description }}<|im_end|>\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}"
    "{{ '\\n' }}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}]{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if mood %}({{ mood }}){% endif %}"
)


@pytest.fixture(scope="module")
def with_template(folder: Callable[[str], Path]) -> Callable[[str], HFTokenizer]:
    return lambda template: HFTokenizer(folder("byte-level"), chat_template=template)


@pytest.fixture(scope="module")
def tools_tokenizer(with_template: Callable[[str], HFTokenizer]) -> HFTokenizer:
    return with_template(TOOLS)


# -- marks ----------------------------------------------------------------------------------

NASTY = st.lists(st.sampled_from(["<a>", "<a", ">", "a>b", "b", "#", "<", MARK, BREAK, "x"])).map(
    "".join
)


@given(text=NASTY)
def test_defused_text_has_no_live_control_token_and_plain_undoes_it(text: str) -> None:
    control = ControlTokens(["<a>", "a>b", "#"])
    marked = control.defuse(text)
    assert control.plain(marked) == text
    assert control.pieces(marked) == ([(text, False)] if text else [])


@given(begin=NASTY, rest=NASTY)
def test_what_begins_a_text_begins_it_defused(begin: str, rest: str) -> None:
    control = ControlTokens(["<a>", "<a>b", "a>b", "#"])
    whole, part = control.defuse(begin + rest), control.defuse(begin)
    assert whole.startswith(part)
    # Cut there, the rest has no live control token either.
    assert control.pieces(whole[len(part) :]) == ([(rest, False)] if rest else [])


@given(before=NASTY, after=NASTY, token=st.sampled_from(["<a>", "a>b", "#"]))
def test_only_the_templates_own_control_tokens_are_live(
    before: str, after: str, token: str
) -> None:
    control = ControlTokens(["<a>", "a>b", "#"])
    # A template's text between: what users wrote never completes a control token by itself.
    rendered = control.defuse(before) + " " + token + " " + control.defuse(after)
    pieces = control.pieces(rendered)
    assert pieces == [(before + " ", False), (token, True), (" " + after, False)]
    assert control.plain(rendered) == before + " " + token + " " + after


def test_without_control_tokens_nothing_is_live() -> None:
    control = ControlTokens([])
    assert control.pieces(control.defuse("a" + MARK)) == [("a" + MARK, False)]


# -- messages -------------------------------------------------------------------------------


def prepared(*messages: Any) -> list[dict[str, Any]]:
    return prepare_messages(messages, lambda text: text)


def test_e1_text_parts_are_joined_in_order() -> None:
    parts = [{"type": "text", "text": "red "}, {"type": "text", "text": "fox"}]
    assert prepared({"role": "user", "content": parts})[0]["content"] == "red fox"
    assert prepared({"role": "user", "content": []})[0]["content"] == ""


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, "image_url"),
        ({"role": "user", "content": ["x"]}, "str"),
        ({"role": "user", "content": [{"type": "text"}]}, "no text"),
        ({"role": "user", "content": 5}, "content"),
        ({"content": "x"}, "role"),
        ({"role": None, "content": "x"}, "role"),
        ("hello", "str"),
        ({"role": "assistant", "tool_calls": {}}, "tool_calls"),
        ({"role": "assistant", "tool_calls": ["x"]}, "name"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "'f'",
        ),
    ],
)
def test_what_is_no_message_is_refused_by_name(message: Any, named: str) -> None:
    with pytest.raises(InvalidPrompt, match=named):
        prepared(USER, message)
    with pytest.raises(InvalidPrompt, match="message 1"):
        prepared(USER, message)


def test_a_chat_without_messages_is_refused() -> None:
    with pytest.raises(InvalidPrompt):
        prepared()


def test_i3_null_is_empty_text_and_arguments_become_objects(tools_tokenizer: HFTokenizer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    empty = {"id": "2", "type": "function", "function": {"name": "now", "arguments": ""}}
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call, empty], "name": None},
        {"role": "tool", "content": "7", "tool_call_id": "1", "tool_calls": None},
        USER,
    ]
    text = tools_tokenizer.plain(tools_tokenizer.render_chat(cast("Any", turns)))
    assert "<|im_start|>assistant\n[add a=1][now]<|im_end|>" in text
    assert "<|im_start|>tool\n7<|im_end|>" in text
    assert "None" not in text


def test_both_forms_of_a_tool_call_are_parsed() -> None:
    calls = [{"name": "f", "arguments": "[1]"}, {"function": {"name": "g", "arguments": {"b": 2}}}]
    (message,) = prepared({"role": "assistant", "content": "", "tool_calls": calls})
    assert message["tool_calls"] == [
        {"name": "f", "arguments": [1]},
        {"function": {"name": "g", "arguments": {"b": 2}}},
    ]


def test_messages_are_never_changed(tools_tokenizer: HFTokenizer) -> None:
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "<|im_end|>"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "<|im_end|>"}'}}],
        },
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}]
    before = copy.deepcopy((turns, tools))
    tools_tokenizer.render_chat(turns, tools=tools)
    tools_tokenizer.render_chat(turns, continue_final_message=True)
    assert (turns, tools) == before


def test_any_mapping_is_a_message(tools_tokenizer: HFTokenizer) -> None:
    frozen = MappingProxyType(USER)
    assert tools_tokenizer.render_chat((frozen,)) == tools_tokenizer.render_chat([USER])


# -- control tokens -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": "@"},
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("<|im", "_end|>")]},
        {"role": "user", "content": "x", "name": "@"},
        {"role": "user@", "content": "x"},
        {"role": "tool", "content": "@"},
        {"role": "assistant", "tool_calls": [{"name": "@", "arguments": "{}"}]},
        {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a": "@"}'}]},
        {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"@": 1}'}]},
        # spelled with an escape of JSON
        {"role": "assistant", "tool_calls": [
            {"name": "f", "arguments": '{"a": "\\u003c|im_end|>"}'}]},
    ],
)  # fmt: skip
def test_i_a_control_token_is_text_wherever_a_message_spells_it(
    tools_tokenizer: HFTokenizer, turn: dict[str, Any]
) -> None:
    tokenizer = tools_tokenizer
    spelled = _replace(turn, "@", "<|im_end|>")
    if "tool_calls" in spelled:
        spelled["tool_calls"] = [{"function": call} for call in spelled["tool_calls"]]
    rendered = tokenizer.render_chat([spelled])
    ids = tokenizer.encode_rendered(rendered)
    assert sum(i in tokenizer.special_ids for i in ids) == 2
    assert "<|im_end|>" in tokenizer.plain(rendered).removesuffix("<|im_end|>\n")
    assert tokenizer.decode(ids, skip_special_tokens=False) == tokenizer.plain(rendered)


def _replace(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {k: _replace(v, old, new) for k, v in value.items()}
    if isinstance(value, list):
        return [_replace(v, old, new) for v in value]
    return value


def test_defuse_gives_what_render_chat_puts_in_and_its_rest_can_be_encoded_apart(
    byte_level_tokenizer: HFTokenizer,
) -> None:
    tokenizer = byte_level_tokenizer
    content = "a<|im_end|>" + MARK
    rendered = tokenizer.render_chat([{"role": "user", "content": content}])
    head, found, _ = rendered.partition(tokenizer.defuse(content))
    assert found
    # An earlier rendering may end anywhere in the user's text, inside a spelled token too.
    for n in range(len(content)):
        begin = head + tokenizer.defuse(content[:n])
        assert rendered.startswith(begin)
        rest = tokenizer.encode_rendered(rendered[len(begin) :], continued=True)
        ids = tokenizer.encode_rendered(begin) + rest
        assert tokenizer.decode(ids, skip_special_tokens=False) == tokenizer.plain(rendered)
        assert sum(i in tokenizer.special_ids for i in ids) == 3


def test_i_a_control_token_in_a_tools_description_is_text(tools_tokenizer: HFTokenizer) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "x<|im_end|>y"}}]
    rendered = tools_tokenizer.render_chat([USER], tools=tools)
    ids = tools_tokenizer.encode_rendered(rendered)
    assert "x<|im_end|>y" in tools_tokenizer.plain(rendered)
    assert sum(i in tools_tokenizer.special_ids for i in ids) == 4


# -- templates ------------------------------------------------------------------------------


def test_variables_and_tools_reach_the_template(tools_tokenizer: HFTokenizer) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d"}}]
    rendered = tools_tokenizer.render_chat([USER], tools=tools, mood="glad")
    assert rendered == tools_tokenizer.hf.apply_chat_template(
        [USER], tools=tools, mood="glad", tokenize=False, add_generation_prompt=True
    )
    assert "tool f: d" in rendered
    assert "(glad)" in rendered


@pytest.mark.parametrize("name", ["tokenize", "truncation", "chat_template", "return_tensors"])
def test_arguments_that_are_no_variables_are_refused(
    tools_tokenizer: HFTokenizer, name: str
) -> None:
    given: dict[str, Any] = {name: None}
    with pytest.raises(InvalidParameter, match=name):
        tools_tokenizer.render_chat([USER], **given)


def test_an_open_final_message_ends_with_its_text(byte_level_tokenizer: HFTokenizer) -> None:
    turns = [USER, {"role": "assistant", "content": "The <|im_end|> cat "}]
    rendered = byte_level_tokenizer.render_chat(turns, continue_final_message=True)
    text = byte_level_tokenizer.plain(rendered)
    assert text.endswith("<|im_start|>assistant\nThe <|im_end|> cat ")
    begin = byte_level_tokenizer.render_chat(turns[:1])
    assert rendered.startswith(begin)


def test_i2_the_templates_own_complaint_is_the_message(
    folder: Callable[[str], Path], with_template: Callable[[str], HFTokenizer]
) -> None:
    roles = HFTokenizer(folder("sp-first"))
    with pytest.raises(ChatTemplateError, match="Only user and assistant roles"):
        roles.render_chat([{"role": "system", "content": "x"}, USER])
    alternating = with_template(
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate!') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(ChatTemplateError, match="Roles must alternate!"):
        alternating.render_chat([USER, USER])
    assert alternating.encode("plain prompts keep working")


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{{ messages[0].content.no_such_method() }}", "no_such_method"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ messages[0].content.__class__.__mro__ }}", "__class__"),
        ("{{ 1 / 0 }}", "zero"),
        ("{% for m in messages %}", "endfor"),
    ],
)
def test_i2_what_the_sandbox_lacks_is_a_template_error(
    with_template: Callable[[str], HFTokenizer], template: str, complaint: str
) -> None:
    with pytest.raises(ChatTemplateError, match=complaint):
        with_template(template).render_chat([USER])


def test_i2_without_a_template_the_error_says_how_to_give_one(
    with_template: Callable[[str], HFTokenizer],
) -> None:
    with pytest.raises(ChatTemplateError, match=r"chat_template\.jinja"):
        with_template("").render_chat([USER])
