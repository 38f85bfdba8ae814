"""Tools: schemas from signatures, the models' formats of calls, and the loop around them."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import pytest
from conftest import MakeEngine
from fake_backend import FakeBackend, Play

import rtlang as rt
from rtlang import tool_docs
from rtlang.backends.base import Capabilities
from rtlang.errors import (
    ChatTemplateError,
    ConflictingConstraints,
    InvalidParameter,
    ProgramError,
    RequestAborted,
    ToolError,
    TruncatedOutput,
    Unsupported,
)
from rtlang.grammar import accepts
from rtlang.runtime.hf_tokenizer import HFTokenizer
from rtlang.runtime.tokenizer import Message
from rtlang.runtime.tools.formats import LLAMA, MISTRAL, PLAIN, BadCall, grammar, read_calls
from rtlang.runtime.tools.style import lead_ids, style_of
from rtlang.testing import ByteTokenizer, Reply, ScriptedModel

FORMATS = {"plain": PLAIN, "llama": LLAMA, "mistral": MISTRAL}


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: the first one
        b (int): the second one,
            or one
    """
    return a + b


def upper(text: str) -> str:
    return text.upper()


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def run_gen(backend: Any, tools: Any, **options: Any) -> rt.ProgramRun[None]:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += rt.user("q") + rt.assistant(rt.gen("x", tools=tools, **options))

    return program.run(backend=backend)


# -- from a function to a schema ------------------------------------------------------------------


def test_a_tool_is_its_functions_signature() -> None:
    made = rt.tool(add)
    assert (made.name, made.description, made(2, b=3)) == ("add", "Add two numbers.", 5)
    assert made.schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"description": "the first one", "type": "integer"},
                    "b": {"description": "the second one, or one", "type": "integer"},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


def test_structured_parameters_are_values_of_their_types() -> None:
    seen: list[Any] = []

    @rt.tool(name="go", description="Move.")
    def move(
        to: Point, how: Literal["walk", "run"], via: Annotated[list[Point], "on the way"]
    ) -> None:
        seen.append((to, how, via))

    assert (move.name, move.description) == ("go", "Move.")
    assert move.parameters["properties"]["via"]["description"] == "on the way"
    arguments = '{"to": {"x": 1}, "how": "run", "via": [{"x": 2, "y": 0.5}]}'
    run_gen(FakeBackend(replies(call("go", arguments), "ok")), [move])
    assert seen == [(Point(1.0), "run", [Point(2.0, 0.5)])]


def test_methods_async_functions_and_callable_objects() -> None:
    class Counter:
        step = 5

        @rt.tool
        def count(self, n: int) -> int:
            return n + self.step

        def plain(self, n: int) -> int:
            return n - self.step

        async def __call__(self, n: int) -> int:
            return n * self.step

    counter = Counter()
    tools = [counter.count, counter.plain, rt.tool(name="times")(counter)]
    for name, expected in (("count", 6), ("plain", -4), ("times", 5)):
        backend = FakeBackend(replies(call(name, '{"n": 1}'), "ok"))
        run = run_gen(backend, tools)
        assert run.get_meta_info("x")["tool_calls"][0]["result"] == expected
    with pytest.raises(ProgramError, match="take it from an object"):
        rt.Tools([Counter.count])


def unannotated(a, b: int) -> int:  # type: ignore[no-untyped-def]
    return b


def sets(a: set[int]) -> None: ...


def many(*a: int) -> None: ...


def positional(a: int, /) -> None: ...


def misspelt(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unannotated, "'unannotated': parameter 'a' has no annotation"),
        (sets, "'sets': parameter 'a'"),
        (many, "'a' cannot be given by its name"),
        (positional, "'a' cannot be given by its name"),
        (misspelt, "annotations cannot be read"),
        (lambda: None, "cannot be a tool's name"),
        (Point, "a tool is made of a function"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_where_it_is_declared(
    function: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ProgramError, match=message):
        rt.tool(function)
    with pytest.raises(ProgramError, match=message):
        rt.gen("x", tools=[function])


@pytest.mark.parametrize(
    ("given", "options", "error"),
    [
        ([], {}, ProgramError),
        (add, {}, ProgramError),
        ("add", {}, ProgramError),
        ([add, rt.tool(add)], {}, ProgramError),
        ([add], {"choice": "sub"}, InvalidParameter),
        ([add], {"choice": upper}, InvalidParameter),
        ([add], {"max_rounds": 0}, InvalidParameter),
        ([add], {"on_error": "ignore"}, InvalidParameter),
        ([add], {"parallel": 1}, InvalidParameter),
        ([add], {"timeout": 0}, InvalidParameter),
        ([add], {"format": "hermes"}, InvalidParameter),
        ([add], {"result_format": "no place"}, InvalidParameter),
    ],
)
def test_wrong_options_of_tools(given: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        rt.Tools(given, **options)


GOOGLE = """Find it.

In all places.

Args:
    where: the place,
        or its name
    *rest (str): more: of it

Returns:
    where: not a parameter
"""
NUMPY = """Find it.

In all places.

Parameters
----------
where : str
    the place,
    or its name
*rest
    more: of it

Returns
-------
where : str
    not a parameter
"""
REST = """Find it.

In all places.

:param where: the place,
    or its name
:param str rest: more: of it
:returns where: not a parameter
"""


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_docstrings_describe_parameters(doc: str) -> None:
    found = tool_docs.read(doc)
    assert found.summary == "Find it.\n\nIn all places."
    assert found.parameters == {"where": "the place, or its name", "rest": "more: of it"}


def test_a_docstring_without_sections_is_all_summary() -> None:
    assert tool_docs.read("Note: this stays.\nAll of it.") == ("Note: this stays.\nAll of it.", {})
    assert tool_docs.read(None) == ("", {})


# -- the formats ----------------------------------------------------------------------------------

TOOLS = {t.name: t.parameters for t in (rt.tool(add), rt.tool(upper))}
ONE, TWO = '{"a": 1, "b": -2}', '{"text": "a </tool_call> \\" ] é"}'


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_reads_what_its_grammar_allows(name: str) -> None:
    form = FORMATS[name]
    calls = [form.begin_of(n) + args + form.end for n, args in (("add", ONE), ("upper", TWO))]
    both = form.opening + form.separator.join(calls) + form.closing
    one = form.opening + calls[0] + form.closing
    free = grammar(form, TOOLS, required=False, parallel=True)
    forced = grammar(form, TOOLS, required=True, parallel=True)
    single = grammar(form, TOOLS, required=False, parallel=False)
    assert accepts(free, "just text <tool") and accepts(free, "text\n" + both)
    assert accepts(forced, both) and not accepts(forced, "text\n" + both)
    assert accepts(single, "text " + one) and not accepts(single, both)
    for wrong in (
        both + " text",
        one.replace("add", "sub"),
        one.replace("-2", '"two"'),
        one.replace("-2", '-2, "c": 3'),
        one[:-1],
        form.trigger,
    ):
        assert not accepts(free, wrong), wrong
    found = read_calls("text\n" + both, form, list(TOOLS), required=False)
    assert [c.name for c in found] == ["add", "upper"]
    assert found[0].arguments == {"a": 1, "b": -2}
    assert found[1].arguments == {"text": 'a </tool_call> " ] é'}
    assert read_calls("just text <tool", form, list(TOOLS), required=False) == []
    for wrong in (both[:-1], one.replace("add", "sub"), one + "?"):
        with pytest.raises(BadCall):
            read_calls(wrong, form, list(TOOLS), required=False)
    with pytest.raises(BadCall):
        read_calls("text" + one, form, list(TOOLS), required=True)


def test_a_format_without_a_trigger_has_each_tools_beginning() -> None:
    form = rt.ToolFormat(begin="<{name}>", end="</{name}>")
    free = grammar(form, TOOLS, required=False, parallel=True)
    text = f"a < b <add>{ONE}</add>\n<upper>{TWO}</upper>"
    assert accepts(free, text) and not accepts(free, text.replace("</add>", "</upper>"))
    assert [c.name for c in read_calls(text, form, list(TOOLS), required=False)] == ["add", "upper"]
    alike = {"add": TOOLS["add"], "xadd": TOOLS["add"]}
    with pytest.raises(InvalidParameter, match="told apart"):
        grammar(rt.ToolFormat(begin="{name}("), alike, required=False, parallel=True)


def test_wrong_formats() -> None:
    with pytest.raises(InvalidParameter, match="name"):
        rt.ToolFormat(begin="<call>")
    with pytest.raises(InvalidParameter, match="trigger"):
        rt.ToolFormat(begin="<{name}>", trigger="[")


def test_tools_describe_themselves_for_a_prompt() -> None:
    text = rt.Tools([add, upper]).describe()
    assert '"description": "Add two numbers."' in text and '"name": "upper"' in text
    assert text.endswith(call("NAME", "ARGUMENTS"))


# -- what chat templates say ----------------------------------------------------------------------


class Told(ByteTokenizer):
    """ChatML that tells of tools with ``intro``, and shows calls with ``shown``."""

    def __init__(self, intro: str, shown: str = "", *, tool_role: bool = True) -> None:
        super().__init__()
        self._intro, self._shown, self._tool_role = intro, shown, tool_role

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        tools = template_kwargs.pop("tools", None) or []
        if not self._tool_role and any(m["role"] == "tool" for m in messages):
            raise ChatTemplateError("roles must alternate")
        names = ",".join(tool["function"]["name"] for tool in tools)
        head = f"{self._intro}{names}\n" if tools else ""
        shown = [
            {"role": m["role"], "content": m["content"] + self._calls(m)}
            if "tool_calls" in m
            else m
            for m in messages
        ]
        rest = super().render_chat(shown, add_generation_prompt=add_generation_prompt)
        return head + rest

    def _calls(self, message: Message) -> str:
        name = message["tool_calls"][0]["function"]["name"]
        return self._shown.replace("NAME", name)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (ByteTokenizer(), (PLAIN, False, "tool")),
        (Told("in <tool_call></tool_call>: "), (PLAIN, True, "tool")),
        (Told("[AVAILABLE_TOOLS]", tool_role=False), (MISTRAL, True, "user")),
        (Told("call: ", '{"name": "NAME", "parameters": {}}'), (LLAMA, True, "tool")),
        (Told("<tool_call>", "<tool_call><function=NAME>"), (None, True, "tool")),
        (ByteTokenizer(chat=False), (PLAIN, False, "user")),
    ],
)
def test_the_format_is_what_the_template_shows(tokenizer: Any, expected: Any) -> None:
    style = style_of(tokenizer)
    assert (style.format, style.describes, style.role) == expected


def test_a_template_that_tells_of_tools_gets_them() -> None:
    tokenizer = Told("tools <tool_call>: ")
    backend = FakeBackend(replies(call("add", ONE), "done"), tokenizer=tokenizer)
    run = run_gen(backend, [add, upper])
    first, second = backend.prompts()
    assert first.startswith("tools <tool_call>: add,upper\n")
    assert second.startswith(first + call("add", ONE))  # nothing was rendered again
    assert run["x"] == "done"


def test_an_unknown_format_of_a_template_is_refused() -> None:
    backend = FakeBackend(tokenizer=Told("<tool_call>", "<tool_call><function=NAME>"))
    with pytest.raises(Unsupported, match="give a format"):
        run_gen(backend, [add])
    assert backend.calls == []
    assert run_gen(backend, rt.Tools([add], format=PLAIN))["x"] == "ok"


def test_results_are_a_user_turn_where_there_is_no_role_for_them() -> None:
    two = "[TOOL_CALLS] [" + ", ".join(
        f'{{"name": "{n}", "arguments": {a}}}' for n, a in (("add", ONE), ("upper", TWO))
    )
    backend = FakeBackend(
        replies(two + "]", "done"), tokenizer=Told("[AVAILABLE_TOOLS]", tool_role=False)
    )
    run = run_gen(backend, rt.Tools([add, upper], result_format="{name} gives {result}"))
    assert run.messages()[2] == {
        "role": "user",
        "content": 'add gives -1\nupper gives A </TOOL_CALL> " ] É',
    }
    assert [m["role"] for m in run.messages()] == ["user", "assistant", "user", "assistant"]


class Special(ByteTokenizer):
    """The calls' first marker is a control token: 260."""

    def encode(self, text: str, *, add_bos: bool = True, control: bool = True) -> list[int]:
        before, found, after = text.partition("[TOOL_CALLS]")
        if not control or not found:
            return super().encode(text, add_bos=add_bos, control=control)
        return [*before.encode(), 260, *after.encode()]

    def __init__(self) -> None:
        super().__init__()
        self.special_ids = self.special_ids | {260}
        self.token_bytes = [*self.token_bytes[:260], b"[TOOL_CALLS]", *self.token_bytes[261:]]


def test_a_marker_that_is_a_control_token_is_put_by_us_or_refused(make_engine: MakeEngine) -> None:
    assert lead_ids(MISTRAL, Special()) == [260] and lead_ids(PLAIN, Special()) == []
    said = f' [{{"name": "add", "arguments": {ONE}}}]'
    engine = make_engine(ScriptedModel([said, "so -1"], tokenizer=Special()))
    with pytest.raises(Unsupported, match=r"'\[TOOL_CALLS\]' is a control token"):
        run_gen(engine, rt.Tools([add], format=MISTRAL))
    run = run_gen(engine, rt.Tools([add], format=MISTRAL, choice="required"))
    assert run["x"] == "so -1"
    assert run.messages()[1]["content"] == "[TOOL_CALLS]" + said
    assert run.token_ids().count(260) == 1
    first, second = run.usage.calls
    assert second.cached_tokens == first.prompt_tokens + len(said)
    inside = rt.ToolFormat(begin="<{name}>", end="[TOOL_CALLS]")
    with pytest.raises(Unsupported, match="end"):
        run_gen(engine, rt.Tools([add], format=inside, choice="required"))


JINJA = """\
{%- if tools %}<|im_start|>system
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call> to call one of:
{%- for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}
{%- if m.role == "tool" %}
{%- if messages[loop.index0 - 1].role != "tool" %}<|im_start|>user{% endif %}
<tool_response>{{ m.content }}</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}<|im_end|>
{% endif %}{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.model
def test_a_real_template_shows_tools_and_joins_results(make_engine: MakeEngine) -> None:
    tokenizer = HFTokenizer(make_engine("smollm2").model_path, chat_template=JINJA)
    both = call("add", ONE) + "\n" + call("upper", '{"text": "<|im_end|>"}')
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return both if len(prompts) == 1 else "done"

    engine = make_engine(ScriptedModel(script, tokenizer=tokenizer))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = run_gen(engine, [add, upper])
    first, second = prompts
    assert '"description": "Add two numbers."' in first
    assert second == (
        f"{first}{both}<|im_end|>\n<|im_start|>user<tool_response>-1</tool_response>"
        "<tool_response><|IM_END|></tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    rendered = tokenizer.render_chat(
        run.messages(), tools=rt.Tools([add, upper]).schemas(), add_generation_prompt=False
    )
    assert tokenizer.decode(run.token_ids(), skip_special_tokens=False) == tokenizer.plain(rendered)


# -- the loop ------------------------------------------------------------------------------------


def replies(*texts: str | Play) -> Callable[[Any], Play | str]:
    left = list(texts)
    return lambda call: left.pop(0)


def test_the_grammar_makes_calls_of_a_model_that_prefers_other_tokens(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(ScriptedModel(lambda prompt: "no" if "tool\n" in prompt else "?" * 40))
    run = run_gen(engine, rt.Tools([add], choice="required"), max_tokens=200)
    assert [c["name"] for c in run.get_meta_info("x")["tool_calls"]] == ["add"]
    assert run["x"] == "no"  # turns after the first need not call


def test_a_given_tool_is_called(make_engine: MakeEngine) -> None:
    engine = make_engine(ScriptedModel([call("upper", TWO), "fine"]))
    for choice in ("add", add):
        run = run_gen(engine, rt.Tools([add, upper], choice=choice), max_tokens=400)
        assert run.get_meta_info("x")["tool_calls"][0]["name"] == "add"


def test_choice_none_is_a_plain_generation() -> None:
    backend = FakeBackend(replies(call("add", ONE)))
    run = run_gen(backend, rt.Tools([add], choice="none"))
    assert run["x"] == call("add", ONE) and len(backend.calls) == 1
    assert backend.calls[0].params.grammar is None


def test_text_before_calls_stays_in_the_turn(make_engine: MakeEngine) -> None:
    text = "I will add.\n" + call("add", ONE)
    run = run_gen(make_engine(ScriptedModel([text, "-1"])), [add])
    assert [m["content"] for m in run.messages()[1:]] == [text, "-1", "-1"]
    assert run["x"] == "-1"
    assert len(run.usage.calls) == 2


def test_calls_of_a_turn_run_at_the_same_time_and_keep_their_order() -> None:
    barrier = threading.Barrier(3, timeout=20)
    arrived = asyncio.Event()

    def wait(n: int) -> int:
        barrier.wait()
        return n

    async def late(n: int) -> list[int]:
        await arrived.wait()
        return [n]

    async def early() -> str:
        arrived.set()
        return "é"

    calls = [call("wait", f'{{"n": {n}}}') for n in range(3)]
    calls.insert(1, call("late", '{"n": 7}'))
    backend = FakeBackend(replies("\n".join([*calls, call("early", "{}")]), "end"))
    run = run_gen(backend, [wait, late, early])
    assert [m["content"] for m in run.messages()[2:-1]] == ["0", "[7]", "1", "2", "é"]
    assert {m["role"] for m in run.messages()[2:-1]} == {"tool"}


def test_results_are_text_or_json() -> None:
    def some() -> Any:
        return {"p": Point(1.0), "é": [None, True]}

    def odd() -> Any:
        return object()

    backend = FakeBackend(replies(call("some", "{}") + "\n" + call("odd", "{}"), "end"))
    run = run_gen(backend, [some, odd])
    first, second = (m["content"] for m in run.messages()[2:4])
    assert first == '{"p": {"x": 1.0, "y": 0.0}, "é": [null, true]}'
    assert second == "error: TypeError: a result of type object has no JSON form"


def test_whatever_a_tool_raises_is_told() -> None:
    def leave() -> None:
        raise SystemExit(3)

    def stop() -> None:
        raise StopIteration

    async def quit_now() -> None:
        raise KeyboardInterrupt

    async def cancel() -> None:
        raise asyncio.CancelledError

    tools = [leave, stop, quit_now, cancel, add]
    names = [t.__name__ for t in tools]
    text = "\n".join(call(name, "{}") for name in names)
    run = run_gen(FakeBackend(replies(text, "end")), tools)
    told = [m["content"] for m in run.messages()[2:-1]]
    assert told[0] == "error: SystemExit: 3"
    assert "StopIteration" in told[1] and "KeyboardInterrupt" in told[2]
    assert "cancelled itself" in told[3] and "'a'" in told[4]
    assert run["x"] == "end"


def test_a_tool_that_takes_too_long_has_failed() -> None:
    release = threading.Event()

    def slow() -> None:
        release.wait(20)

    async def slow_too() -> None:
        await asyncio.sleep(20)

    text = call("slow", "{}") + "\n" + call("slow_too", "{}")
    tools = rt.Tools([slow, slow_too], timeout=0.05)
    run = run_gen(FakeBackend(replies(text, "end")), tools)
    release.set()
    told = "error: TimeoutError: no result within 0.05 s"
    assert [m["content"] for m in run.messages()[2:4]] == [told, told]
    with pytest.raises(ToolError) as raised:
        run_gen(FakeBackend(replies(text)), dataclasses.replace(tools, on_error="raise"))
    assert isinstance(raised.value.__cause__, TimeoutError)


def test_a_cancelled_state_waits_for_no_tool() -> None:
    started, release = threading.Event(), threading.Event()

    def slow() -> None:
        started.set()
        release.wait(20)

    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += rt.user("q") + rt.assistant(rt.gen("x", tools=[slow]))
        started.wait(20)
        s.cancel()
        with pytest.raises(RequestAborted):
            s["x"]

    backend = FakeBackend(replies(call("slow", "{}"), "never"))
    run = program.run(backend=backend, raise_errors=False)
    release.set()
    assert isinstance(run.error, RequestAborted) and len(backend.calls) == 1


def test_a_cut_call_is_truncated_output(make_engine: MakeEngine) -> None:
    script = {"<|im_start|>assistant\n": Reply(call("add", ONE))}
    engine = make_engine(ScriptedModel(script))
    with pytest.raises(TruncatedOutput, match="'x' was cut by its length") as raised:
        run_gen(engine, [add], max_tokens=30)
    assert raised.value.text == call("add", ONE)[:30]
    with pytest.raises(TruncatedOutput, match="stop"):
        run_gen(engine, [add], stop="arguments")


def test_a_backend_that_ignores_the_grammar_is_found_out() -> None:
    for text in (call("sub", ONE), call("add", "[]"), call("add", ONE) + "!"):
        with pytest.raises(ToolError, match="no tool was called properly"):
            run_gen(FakeBackend(replies(text)), [add])


def test_arguments_that_a_type_refuses_are_the_tools_error() -> None:
    run = run_gen(FakeBackend(replies(call("add", '{"a": 1, "c": 2}'), "end")), [add])
    assert "no parameter 'c'" in run.messages()[2]["content"]


def test_the_text_of_all_turns_streams_and_the_variable_is_the_last() -> None:
    @rt.function
    def program(s: rt.ProgramState) -> None:
        s += "q: " + rt.gen("x", tools=[add]) + "."

    said = call("add", ONE)
    run = program.run(backend=FakeBackend(replies(said, "done")), stream=True)
    assert "".join(run.text_iter("x")) == run["x"] == "done"
    between = "\n<tool_response>\n-1\n</tool_response>\n"
    assert "".join(run.text_iter()) == run.text() == f"q: {said}{between}done."


def test_async_programs_and_forks_have_tools() -> None:
    @rt.function
    async def program(s: rt.ProgramState) -> list[str]:
        s += rt.user("q")
        forks = s.fork(2)
        forks += lambda i: rt.assistant(rt.gen("x", tools=[add]))
        return (await forks.async_join())["x"]

    def play(asked: Any) -> str:
        return (
            "end" if b"tool\n" in bytes(i for i in asked.input_ids if i < 256) else call("add", ONE)
        )

    assert program.run(backend=FakeBackend(play)).value == ["end", "end"]


def test_each_turn_has_a_seed_of_its_own() -> None:
    backend = FakeBackend(replies(call("add", ONE), "end"))
    run_gen(backend, [add], seed=7)
    assert [(c.params.sampling_seed, c.choice) for c in backend.calls] == [(7, 0), (7, 1)]


def test_contradictions_are_errors_at_their_line() -> None:
    wrong: list[dict[str, Any]] = [{"regex": "a"}, {"type": int}, {"n": 2}, {"choices": ["a"]}]
    for options in wrong:
        with pytest.raises(ProgramError, match="contradicts"):
            rt.gen("x", tools=[add], **options)
    with pytest.raises(ConflictingConstraints):
        run_gen(FakeBackend(), [add], ignore_eos=True)

    @rt.function
    def program(s: rt.ProgramState) -> None:
        with pytest.raises(ProgramError, match="the assistant calls tools"):
            s += rt.user(rt.gen("x", tools=[add]))
        s += rt.user("q")

    program.run(backend=FakeBackend())
    no_grammar = Capabilities(sampling=Capabilities().sampling - {"grammar"})
    with pytest.raises(Unsupported):
        run_gen(FakeBackend(capabilities=no_grammar), [add])
