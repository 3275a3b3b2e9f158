"""OpenAI's chat request, read strictly, and its answers: whole ones, or chunks of a stream.

What has no effect here is refused, not ignored; answers are put together while the engine writes.
https://platform.openai.com/docs/api-reference/chat/create and .../chat/object (2026-11-21). Beyond
it, as vLLM has them: `top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `stop_token_ids`,
`ignore_eos`, `stream_options.continuous_usage_stats`, `chat_template_kwargs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from workloads.data.chat_template import prompt_text
from workloads.data.chats import read_openai
from workloads.recipes.serve import MAX_TOP_LOGPROBS, Limits
from workloads.serve.metrics import Watch
from workloads.serve.sampling import Form
from workloads.serve.scheduler import (
    ApiError,
    Delta,
    Generation,
    Sampling,
    Sink,
    TokenLogprob,
)
from workloads.serve.text import CallPart, ToolStream

if TYPE_CHECKING:
    from workloads.serve.engine import TransformersEngine


def bad_request(message: str, param: str | None, code: str = "invalid_value") -> ApiError:
    """Return a 400 that names the parameter."""
    return ApiError(status=400, message=message, param=param, code=code)


_MAX_STOPS = 4
_MAX_STOP_IDS = 128
_MAX_OPTION_CHARACTERS = 100
# What changes nothing about the answer.
_WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
)
_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")
_MESSAGE_ROLES = ("system", "developer", "user", "assistant", "tool")
# Refused unless they are what this server does anyway.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "logit_bias": (None, {}),
    "modalities": (None, ["text"]),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request whose values are in range; whether its prompt fits is not known yet."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    """What the model is told of."""
    form: Form
    template: Mapping[str, Any]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    """Whether each chunk tells the usage so far, not the last one alone."""
    num_choices: int
    max_tokens: int | None
    sampling: Sampling
    has_seed: bool
    stop: tuple[str, ...]
    num_logprobs: int | None
    ignore_eos: bool


def parse_chat(body: bytes, limits: Limits, template_options: Sequence[str] = ()) -> ChatRequest:
    """Return the request in `body`; ApiError says which parameter is wrong and what is allowed."""
    try:
        # json.loads would guess UTF-16 and let bytes of half a pair through.
        text = body.decode("utf-8")
        value = json.loads(text)
        # JSON can escape half of a surrogate pair; neither tokenizers nor answers take that.
        if r"\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}", None, "invalid_json") from error
    if not isinstance(value, dict):
        raise bad_request("the body is no JSON object", None, "invalid_json")
    fields = _Fields(value)
    model = fields.typed("model", str, "a string")
    if not model:
        raise bad_request("'model' is missing; GET /v1/models has the names", "model")
    for name, allowed in _ONLY.items():
        got = fields.pop(name, None)
        if got not in allowed:
            raise bad_request(
                f"'{name}': {json.dumps(got)} is not supported by this server; "
                f"allowed: {', '.join(json.dumps(each) for each in allowed[1:])}",
                name,
                "unsupported_parameter",
            )
    wants_logprobs = fields.flag("logprobs")
    num_top = fields.whole("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if num_top and not wants_logprobs:
        raise bad_request("'top_logprobs' needs 'logprobs': true", "top_logprobs")
    stream = fields.flag("stream")
    max_tokens = _max_tokens(fields, limits)
    seed = fields.whole("seed", -(2**63), 2**63 - 1)
    tools = _tools(fields.pop("tools", None))
    choice = fields.pop("tool_choice", None)
    usage = _usage(fields.mapping("stream_options"), stream=stream)
    # tool_choice none: the model is not told of the tools.
    tools = [] if choice == "none" else tools
    form = Form(
        functions=_callable(tools, choice),
        must_call=choice not in (None, "auto", "none"),
        is_parallel=fields.flag("parallel_tool_calls", True),
        schema=_schema(fields.mapping("response_format")),
    )
    request = ChatRequest(
        model=model,
        messages=_messages(fields.pop("messages", None)),
        tools=tools,
        form=form,
        template=_template(fields.mapping("chat_template_kwargs"), template_options),
        stream=stream,
        include_usage=usage["include_usage"],
        continuous_usage=usage["include_usage"] and usage["continuous_usage_stats"],
        num_choices=fields.whole("n", 1, limits.max_choices, 1),
        max_tokens=max_tokens,
        sampling=Sampling(
            temperature=fields.number("temperature", 0.0, 2.0, 1.0),
            top_p=fields.number("top_p", 0.0, 1.0, 1.0),
            top_k=max(0, fields.whole("top_k", -1, 2**31, 0)),
            presence_penalty=fields.number("presence_penalty", -2.0, 2.0, 0.0),
            frequency_penalty=fields.number("frequency_penalty", -2.0, 2.0, 0.0),
            # vLLM takes any number over 0; beyond these bounds nothing but noise is written.
            repetition_penalty=fields.number("repetition_penalty", 0.01, 100.0, 1.0),
            min_p=fields.number("min_p", 0.0, 1.0, 0.0),
            min_tokens=fields.whole("min_tokens", 0, max_tokens or limits.max_output_tokens, 0),
            stop_token_ids=fields.listed(
                "stop_token_ids",
                _is_token_id,
                f"a list of up to {_MAX_STOP_IDS} token ids",
                _MAX_STOP_IDS,
            ),
            seed=seed or 0,
        ),
        has_seed=seed is not None,
        stop=_stop(fields),
        num_logprobs=(num_top or 0) if wants_logprobs else None,
        ignore_eos=fields.flag("ignore_eos"),
    )
    fields.refuse_rest()
    for name, is_given in (
        ("ignore_eos", request.ignore_eos),
        ("min_tokens", request.sampling.min_tokens > 0),
    ):
        if is_given and not form.is_free:
            raise bad_request(
                f"'{name}' writes past an end, and an answer with a form has one; leave it out",
                name,
            )
    return request


class _Fields(dict[str, Any]):
    """The members of the body, each taken out once; what is left over is unknown."""

    def typed(self, name: str, kind: type, what: str) -> Any:
        value = self.pop(name, None)
        if value is not None and not isinstance(value, kind):
            raise _wrong(name, value, what)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.typed(name, bool, "true or false")
        return default if value is None else value

    def mapping(self, name: str) -> Mapping[str, Any]:
        return self.typed(name, dict, "an object") or {}

    def whole(self, name: str, least: int, most: int, default: Any = None) -> Any:
        return self.number(name, least, most, default, kind=int)

    def number(
        self, name: str, least: float, most: float, default: Any, *, kind: type = float
    ) -> Any:
        value = self.pop(name, None)
        if value is None:
            return default
        is_number = isinstance(value, kind | int) and not isinstance(value, bool)
        if not is_number or not least <= value <= most:  # also NaN, which Python's JSON lets in
            what = "a whole number" if kind is int else "a number"
            raise _wrong(name, value, f"{what} from {least} to {most}")
        return kind(value)

    def listed(
        self, name: str, fits: Callable[[Any], bool], what: str, most: int
    ) -> tuple[Any, ...]:
        value = self.pop(name, None)
        values = [] if value is None else value
        if not isinstance(values, list) or len(values) > most or not all(map(fits, values)):
            raise _wrong(name, value, what)
        return tuple(values)

    def refuse_rest(self) -> None:
        given = {name for name, value in self.items() if value is not None}
        for name in sorted(given - _WITHOUT_EFFECT):
            raise bad_request(
                f"'{name}' is not a parameter of this server; leave it out",
                name,
                "unsupported_parameter",
            )


def _wrong(name: str, value: Any, allowed: str) -> ApiError:
    shown = json.dumps(value, default=str)[:80]
    return bad_request(f"'{name}': got {shown}, expected {allowed}", name)


def _max_tokens(fields: _Fields, limits: Limits) -> int | None:
    old = fields.whole("max_tokens", 1, limits.max_output_tokens)
    new = fields.whole("max_completion_tokens", 1, limits.max_output_tokens)
    if old is not None and new is not None and old != new:
        raise bad_request(
            f"'max_tokens' {old} and 'max_completion_tokens' {new} differ; give one",
            "max_tokens",
        )
    return old if new is None else new


def _usage(options: Mapping[str, Any], *, stream: bool) -> dict[str, bool]:
    if options and not stream:
        raise bad_request("'stream_options' needs 'stream': true", "stream_options")
    found = {**dict.fromkeys(_STREAM_OPTIONS, False), **options}
    if len(found) > len(_STREAM_OPTIONS) or not all(isinstance(x, bool) for x in found.values()):
        raise _wrong("stream_options", options, f"true or false for {', '.join(_STREAM_OPTIONS)}")
    return found


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _template(given: Mapping[str, Any], allowed: Sequence[str]) -> Mapping[str, Any]:
    for name, value in given.items():
        at = f"chat_template_kwargs.{name}"
        if name not in allowed:
            raise bad_request(
                f"'{at}' is not taken by this server; allowed: {', '.join(allowed) or 'none'}; "
                "who runs it declares more in serve.template_options",
                "chat_template_kwargs",
                "unsupported_parameter",
            )
        if not isinstance(value, (bool, int, float)) and not (
            isinstance(value, str) and len(value) <= _MAX_OPTION_CHARACTERS
        ):
            wanted = f"true, false, a number or up to {_MAX_OPTION_CHARACTERS} characters"
            raise _wrong(at, value, wanted)
    return given


def _stop(fields: _Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    if value and isinstance(value, str):
        fields["stop"] = [value]
    what = f"a string or a list of 1 to {_MAX_STOPS} strings"
    return fields.listed(
        "stop", lambda each: isinstance(each, str) and each != "", what, _MAX_STOPS
    )


def _messages(value: Any) -> list[Mapping[str, Any]]:
    if not isinstance(value, list) or not value:
        raise _wrong("messages", value, "a list of messages")
    for index, message in enumerate(value):
        at = f"messages[{index}]"
        if not isinstance(message, dict):
            raise _wrong(at, message, "an object with role and content")
        if message.get("role") not in _MESSAGE_ROLES:
            raise _wrong(f"{at}.role", message.get("role"), ", ".join(_MESSAGE_ROLES))
        content = message.get("content")
        if content is None and message["role"] == "assistant" and message.get("tool_calls"):
            continue
        if not isinstance(content, (str, list)):
            raise _wrong(f"{at}.content", content, "a string or a list of text parts")
    return value


def _tools(value: Any) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong("tools", value, "a list of tools")
    for index, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if (
            not isinstance(tool, dict)
            or tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise _wrong(
                f"tools[{index}]", tool, 'an object {"type": "function", "function": {"name": ...}}'
            )
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise _wrong(f"tools[{index}].function.parameters", parameters, "a JSON schema")
    return value


def _callable(tools: Sequence[Mapping[str, Any]], choice: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the functions that may be called, by their place in the request."""
    functions = {f"tools[{index}].function": tool["function"] for index, tool in enumerate(tools)}
    if choice in (None, "auto", "none"):
        return functions
    names = [function["name"] for function in functions.values()]
    wanted = choice.get("function") if isinstance(choice, dict) else None
    name = wanted.get("name") if isinstance(wanted, dict) else None
    if not functions or (choice != "required" and name not in names):
        allowed = ['"auto"', '"none"']
        if functions:
            form = '{"type": "function", "function": {"name": NAME}} with NAME one of '
            allowed += ['"required"', form + ", ".join(names)]
        given = ", ".join(allowed) + ("" if functions else "; a call needs 'tools'")
        raise _wrong("tool_choice", choice, given)
    if name is None:
        return functions
    return {at: function for at, function in functions.items() if function["name"] == name}


def _schema(form: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema that the text must keep; None for free text."""
    kind = form.get("type")
    if not form or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise _wrong("response_format.type", kind, "text, json_object or json_schema")
    given = form.get("json_schema")
    named = given if isinstance(given, dict) else {}
    schema = named.get("schema")
    if not isinstance(schema, dict) or not isinstance(named.get("name"), str):
        raise _wrong("response_format.json_schema", given, '{"name": NAME, "schema": {...}}')
    return schema


def prompt_ids(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    template: Mapping[str, Any],
) -> tuple[int, ...]:
    """Return the tokens of the chat up to where the answer starts; DataError says what is wrong."""
    plain, functions = read_openai({"messages": messages, "tools": tools}, at="request")
    text = prompt_text(tokenizer, plain, functions, **template)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


DONE = b"data: [DONE]\n\n"
_CHUNK = "chat.completion.chunk"


@dataclass(slots=True, kw_only=True)
class Choice:
    """One answer as it grows."""

    generation: Generation
    watch: Watch
    tools: ToolStream | None
    """None: no tool may be called."""
    text: str = ""
    calls: list[CallPart] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def take(self, delta: Delta) -> tuple[str, list[CallPart], bool]:
        """Keep a delta's calls; return its text, parts of calls, whether the choice is whole."""
        if self.tools is None:
            return delta.text, [], delta.finish is not None
        text, parts = self.tools.push(delta.text)
        is_over = delta.finish is not None or self.tools.is_over
        if is_over:
            rest, more = self.tools.finish()
            text, parts = text + rest, parts + more
        for part in parts:
            if part.name is not None:
                self.calls.append(part)
            else:
                call = self.calls[part.index]
                self.calls[part.index] = replace(call, arguments=call.arguments + part.arguments)
        return text, parts, is_over


def event(value: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _call(part: CallPart) -> dict[str, Any]:
    """Return a call, or a part of it; the first part has id and name."""
    function = {"arguments": part.arguments}
    if part.name is None:
        return {"function": function}
    identity = {"id": f"call_{secrets.token_hex(12)}", "type": "function"}
    return {**identity, "function": {"name": part.name, **function}}


def _logprobs(entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    def named(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    content = [
        {
            **named(entry.token, entry.logprob),
            "top_logprobs": [named(*each) for each in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def sink(queue: asyncio.Queue[tuple[int, Delta]], index: int) -> Sink:
    """Return what the engine's thread calls for choice `index` of a request of this loop."""
    loop = asyncio.get_running_loop()

    def put(delta: Delta) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(queue.put_nowait, (index, delta))

    return put


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChat:
    """A request that the engine has taken; it is read once, by `whole` or by `stream`."""

    request: ChatRequest
    engine: TransformersEngine
    queue: asyncio.Queue[tuple[int, Delta]]
    choices: Sequence[Choice]
    timeout_s: float
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def cancel(self) -> None:
        """End the writing of all choices; nobody reads them."""
        for choice in self.choices:
            self.engine.cancel(choice.generation.number)
            choice.watch.end("cancelled")

    async def _deltas(self) -> AsyncIterator[tuple[int, Delta, str, list[CallPart]]]:
        """Yield what comes until all choices have ended: text that is no call, parts of calls."""
        still_open = set(range(len(self.choices)))
        limit_s = self.timeout_s
        deadline_s = asyncio.get_running_loop().time() + limit_s
        while still_open:
            try:
                async with asyncio.timeout_at(deadline_s):
                    index, delta = await self.queue.get()
            except TimeoutError:
                for each in self.choices:
                    each.watch.end("failed")
                raise ApiError(
                    status=504,
                    message=f"the answer was not whole after {limit_s:g} s",
                    code="request_timeout",
                ) from None
            if index not in still_open:
                continue  # on its way when the choice was ended
            choice = self.choices[index]
            choice.watch.saw(delta.num_tokens)
            if delta.failure is not None:
                choice.watch.end("failed")
                raise replace(delta.failure)
            text, parts, is_over = choice.take(delta)
            if is_over and delta.finish is None:
                self.engine.cancel(choice.generation.number)
            if is_over:
                still_open.remove(index)
                tools = choice.tools
                is_cut = delta.finish == "length" and tools is not None and tools.is_cut
                choice.finish_reason = "tool_calls" if choice.calls and not is_cut else delta.finish
                choice.watch.end("finished")
            yield index, delta, text, parts

    async def whole(self) -> Response:
        """Return the answer in one piece."""
        async for index, delta, text, _ in self._deltas():
            self.choices[index].text += text
            self.choices[index].logprobs += delta.logprobs
        has_logprobs = self.request.num_logprobs is not None
        choices = [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": choice.text or (None if choice.calls else ""),
                    **({"tool_calls": [*map(_call, choice.calls)]} if choice.calls else {}),
                },
                "logprobs": _logprobs(choice.logprobs) if has_logprobs else None,
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(self.choices)
        ]
        usage = self._usage(self.choices)
        return JSONResponse(self._body("chat.completion", choices, usage=usage))

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the answer as server-sent events."""
        for index in range(len(self.choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        try:
            async for index, delta, text, parts in self._deltas():
                if text or delta.logprobs:
                    yield self._chunk(index, {"content": text}, logprobs=delta.logprobs)
                if parts:
                    calls = [{"index": part.index, **_call(part)} for part in parts]
                    yield self._chunk(index, {"tool_calls": calls})
                reason = self.choices[index].finish_reason
                if reason is not None:
                    yield self._chunk(index, {}, finish_reason=reason)
            if self.request.include_usage:
                yield event(self._body(_CHUNK, [], usage=self._usage(self.choices)))
        except ApiError as error:
            yield event(error.to_json())
        yield DONE

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] = (),
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": _logprobs(logprobs) if logprobs else None,
            "finish_reason": finish_reason,
        }
        if not self.request.include_usage:
            return event(self._body(_CHUNK, [choice]))
        # Null unless continuous_usage_stats asks for it in every chunk.
        asked = self.request.continuous_usage
        usage = self._usage([self.choices[index]]) if asked else None
        return event(self._body(_CHUNK, [choice], usage=usage))

    def _body(self, kind: str, choices: Sequence[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
            **more,
        }

    def _usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        written = sum(choice.watch.num_tokens for choice in choices)
        read = self.choices[0].watch.num_prompt_tokens
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
