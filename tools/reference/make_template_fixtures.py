#!/usr/bin/env python3
"""Writes chat-template fixtures: our own templates, rendered by the template machinery of `transformers`.

Each file says what goes in and, as `expected`, what must come out; or, as `expected_error`, that the template raises an
error with these words. Between them they use what templates in the wild use.
"""

import argparse
import json
from pathlib import Path

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/interbed-model/tests/fixtures/templates"

CHAT = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": "  A fox, please.\n"},
    {"role": "assistant", "content": "Once upon a time…"},
    {"role": "user", "content": "And then? <b>&\"quotes\"</b> 'single'"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a <city> & its \"surroundings\" – 天气",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Köln", "北京", "a/b"]},
                    "days": {"type": "integer", "default": 3},
                    "limit": {"type": "number", "default": 0.5},
                    "exact": {"type": "boolean", "default": False},
                    "note": {"type": ["string", "null"], "default": None},
                },
                "required": [],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}},
]

LOOPS = """\
{%- if messages[0]['role'] == 'system' -%}
    {%- set system = messages[0]['content'] -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set system = 'Default.' -%}
    {%- set rest = messages -%}
{%- endif -%}
{{ bos_token }}<<SYS>>{{ system }}<</SYS>>
{% for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Roles must alternate: user, assistant, user, ...') }}
    {%- endif -%}
    {{ loop.index }}/{{ loop.length }}{% if loop.first %} first{% endif %}{% if loop.last %} last{% endif %} \
{{ message['role'] | upper }}: {{ message['content'] | trim }}{{ eos_token if message.role == 'assistant' else '' }}
{% endfor -%}
{%- if add_generation_prompt -%}
    {{ 'ASSISTANT:' }}
{%- endif -%}
"""

TOOLS_JSON = """\
{{ bos_token }}{% if tools %}
# Tools
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
{% for tool in tools %}
{{ tool.function.name }}: {{ tool['function'] | tojson(indent=4) }}
{% endfor %}
{% else %}
No tools.
{% endif %}
{% for message in messages %}
{% if message.tool_calls is defined and message.tool_calls %}
{% for call in message.tool_calls %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{% endfor %}
{% elif message.role == 'tool' %}
<result>{{ message.content }}</result>
{% else %}
<{{ message.role }}>{{ message.content | tojson }}</{{ message.role }}>
{% endif %}
{% endfor %}
"""

BLOCKS = """\
{# A comment, and blocks on lines of their own, whose line ends and indents must vanish. #}
{% for message in messages %}
    {% if message.role == 'user' %}
[{{ message.content }}]
    {% elif message.role == 'system' %}

({{ message.content }})
    {%- else %}
        {{ message.content -}}
    {% endif %}
    after {{ loop.index }}
{% endfor %}
  {% if add_generation_prompt %}go{% endif %}
"""

NAMESPACE = """\
{%- set ns = namespace(last_user=-1, count=0, seen_tool=false, names=[]) -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {%- set ns.last_user = loop.index0 -%}
        {%- set ns.count = ns.count + 1 -%}
    {%- endif -%}
    {%- set ns.names = ns.names + [message.role] -%}
{%- endfor -%}
{{ bos_token }}last {{ ns.last_user }} count {{ ns.count }} tool {{ ns.seen_tool }} roles {{ ns.names | join(',') }}
{%- for message in messages[::-1] %} {{ loop.revindex }}:{{ message.role[:1] }}{{ message.role[-2:] }}{% endfor %}
{%- macro turn(role, text='') %}

<|{{ role }}|>{{ text }}<|end|>
{%- endmacro %}
{%- for message in messages if message.role != 'system' %}{{ turn(message.role, text=message.content | trim) }}{% endfor %}
{%- set unique = ns.names | unique | list | sort | reverse | list %} {{ unique | length }} {{ unique }}
{{- eos_token }}"""

STRINGS = """\
{%- for message in messages -%}
    {%- set content = message.content -%}
    {%- if message.role == 'assistant' and '</think>' in content -%}
        {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
        {{ '<think>' + thought + '</think>' }}
    {%- endif -%}
    {%- if content.startswith('/') -%}
        command {{ content[1:].split(' ', 1)[0].upper() }} with {{ content.split()[1:] | join('+') }}
    {%- elif content.strip().endswith('?') -%}
        question {{ content.strip()[:-1] }}
    {%- else -%}
        {{ content.replace('fox', 'owl').title() ~ '|' ~ content.lower() ~ '|' ~ content | replace('o', '0') | capitalize }}
    {%- endif -%}
    {{ '\\n' }}
{%- endfor -%}
{{ 'a,b,,c'.split(',') | length }} {{ '  x '.strip() }}{{ 'xxaxx'.strip('x') }}
{%- if messages[0].content is string and 'story' in messages[0].content %} yes{% else %} no{% endif -%}
"""

VALUES = """\
{{ true }} {{ false }} {{ none }} {{ True }} {{ False }} {{ None }} {{ 1 == 1 }} {{ not add_generation_prompt }}
{{ 1 }} {{ 1.0 }} {{ 2.50 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 8 / 2 }} {{ 7 % 3 }} {{ 2 + 3 * 4 }}
{{ [1, 'two', none, true, 3.0] }} {{ {'a': 1, 'b': [false, "it's"]} }}
{{ missing }}|{{ missing | default('gone') }}|{{ missing is defined }}|{{ none is none }}|{{ '' or 'empty' }}
{{ messages[0].missing is defined }} {{ messages[0].get('role') }} {{ messages[0].get('missing', 'nothing') }}
{%- if messages[0].missing %} never{% endif %} {{ none | tojson }} {{ true | tojson }} {{ [1, none, 1.5] | tojson }}
{% for key, value in {'x': true, 'y': none}.items() %}{{ key }}={{ value }};{% endfor %}
{{ range(3) | list }} {{ 'yes' if add_generation_prompt else 'no' }} {{ messages | length }} {{ [3, 1, 2] | sort | first }}
{{ messages | map(attribute='role') | list }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ enable_thinking is defined and enable_thinking is false }} {{ 3 in [1, 2, 3] }} {{ 'a' not in 'bc' }} {{ 1.0 is number }}
"""

GENERATION = """\
{{ bos_token }}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
<|assistant|>
{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{%- else %}
<|{{ message.role }}|>
{{ message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|assistant|>
{% endif %}"""

CONTROLS = """\
{%- set date = strftime_now('%%') if strftime_now is defined else 'never' -%}
{{ date }}{% for message in messages %}{% if message.role == 'system' %}{% continue %}{% endif %}
{{ message.role }}: {% if message.content is string %}{{ message.content }}
{%- elif message.content is iterable and message.content is not mapping %}
{%- for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% elif part['type'] == 'image' %}<image>{% endif %}
{%- endfor %}{% endif %}
{%- if loop.index == 3 %}{% break %}{% endif %}{% endfor %}
{%- set parts = dict(a=1) %}{{ parts.a }}{% filter upper %} loud {% endfilter %}{% raw %}{{ raw }}{% endraw %}"""

RAISES = """\
{%- for message in messages -%}
    {%- if message.role not in ['user', 'assistant'] -%}
        {{ raise_exception('Unexpected role: ' + message.role) }}
    {%- endif -%}
    {{ message.content }}
{%- endfor -%}"""

# Calls and results within the model's turn, as dictionaries with marks around texts, and thinking in a channel.
DICTIONARIES = """\
{%- macro value(item) -%}
    {%- if item is string -%}{{ '<|"|>' ~ item ~ '<|"|>' }}
    {%- elif item is boolean -%}{{ 'true' if item else 'false' }}
    {%- elif item is mapping -%}{{ members(item) }}
    {%- elif item is sequence -%}[{% for one in item %}{{ value(one) }}{{ ',' if not loop.last }}{% endfor %}]
    {%- else -%}{{ 'null' if item is none else item }}
    {%- endif -%}
{%- endmacro -%}
{%- macro members(item) -%}
    { {%- for key, one in item | dictsort -%}{{ key }}:{{ value(one) }}{{ ',' if not loop.last }}{%- endfor -%} }
{%- endmacro -%}
{%- macro schema(item) -%}
    {
    {%- for key, one in item | dictsort -%}
        {{- key ~ ':' -}}
        {%- if key == 'type' -%}{{ value(one | upper) if one is string else value(one | map('upper') | list) }}
        {%- elif one is mapping -%}{{ schema(one) }}
        {%- else -%}{{ value(one) }}
        {%- endif -%}
        {{- ',' if not loop.last -}}
    {%- endfor -%}
    }
{%- endmacro -%}
{%- macro result(name, response) -%}
    <|tool_response>response:{{ name ~ (members(response) if response is mapping else members({'value': response})) }}<tool_response|>
{%- endmacro -%}
{%- macro said(text) -%}
    {%- set kept = namespace(text='') -%}
    {%- for part in text.split('<channel|>') -%}
        {%- set kept.text = kept.text ~ part.split('<|channel>')[0] -%}
    {%- endfor -%}
    {{- kept.text | trim -}}
{%- endmacro -%}
{%- set thinks = enable_thinking is defined and enable_thinking -%}
{%- set system = messages[0].role in ['system', 'developer'] -%}
{{- bos_token -}}
{%- if thinks or tools or system -%}
    {{- '<|turn>system\\n' ~ ('<|think|>\\n' if thinks else '') ~ (messages[0].content | trim if system else '') -}}
    {%- for tool in tools or [] -%}
        {{- '<|tool>declaration:' ~ tool.function.name ~ '{description:' ~ value(tool.function.description | default('')) -}}
        {{- ',parameters:' ~ schema(tool.function.parameters | default({})) ~ '}<tool|>' -}}
    {%- endfor -%}
    {{- '<turn|>\\n' -}}
{%- endif -%}
{%- set state = namespace(user=-1, last='', turn='') -%}
{%- for message in messages if message.role == 'user' -%}{%- set state.user = messages.index(message) -%}{%- endfor -%}
{%- for message in messages -%}
    {%- set role = 'model' if message.role == 'assistant' else message.role -%}
    {%- if message.role != 'tool' and not (loop.first and system) -%}
        {{- '' if role == 'model' and state.turn == 'model' else '<|turn>' ~ role ~ '\\n' -}}
        {%- set state.turn = role -%}
        {%- set state.last = '' -%}
        {%- if message.tool_calls and message.reasoning_content and loop.index0 > state.user -%}
            {{- '<|channel>thought\\n' ~ message.reasoning_content ~ '\\n<channel|>' -}}
        {%- endif -%}
        {%- for call in message.tool_calls or [] -%}
            {{- '<|tool_call>call:' ~ call.function.name -}}
            {{- members(call.function.arguments) if call.function.arguments is mapping -}}
            {{- '{' ~ call.function.arguments ~ '}' if call.function.arguments is string -}}
            {{- '<tool_call|>' -}}
            {%- set state.last = 'call' -%}
        {%- endfor -%}
        {%- for response in message.tool_responses or [] -%}
            {{- result(response.name, response.response) -}}
            {%- set state.last = 'result' -%}
        {%- endfor -%}
        {%- if message.tool_calls and not message.tool_responses -%}
            {%- for follow in messages[loop.index:] -%}
                {%- if follow.role != 'tool' -%}{%- break -%}{%- endif -%}
                {%- set named = namespace(name=follow.name | default('unknown')) -%}
                {%- for call in message.tool_calls if call.id is defined and call.id == follow.tool_call_id -%}
                    {%- set named.name = call.function.name -%}
                {%- endfor -%}
                {{- result(named.name, follow.content) -}}
                {%- set state.last = 'result' -%}
            {%- endfor -%}
        {%- endif -%}
        {%- if message.content is string -%}
            {{- said(message.content) if role == 'model' else message.content | trim -}}
        {%- endif -%}
        {%- if state.last == 'call' -%}{{ '<|tool_response>' }}
        {%- elif message.content or state.last != 'result' -%}{{ '<turn|>\\n' }}
        {%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not state.last -%}
    {{- '<|turn>model\\n' ~ ('' if thinks else '<|channel>thought\\n<channel|>') -}}
{%- endif -%}
"""

TOOL_CHAT = [
    {"role": "user", "content": "How is the weather in Köln?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 1, "exact": True}}}
        ],
    },
    {"role": "tool", "content": "{\"sky\": \"clear\"}"},
    {"role": "assistant", "content": "It's <clear> & sunny: \"☀\"\n\tbye\\"},
]
STRING_CHAT = [
    {"role": "user", "content": "Tell a story about a fox"},
    {"role": "assistant", "content": "<think>\nA fox is\nsmall.\n</think>\n\nOnce upon a FOX."},
    {"role": "user", "content": "/help me now  please"},
    {"role": "user", "content": " Is it true?  "},
]
PARTS_CHAT = [
    {"role": "system", "content": "Skipped."},
    {"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": " nice"}]},
    {"role": "assistant", "content": "Indeed."},
    {"role": "user", "content": "Never reached."},
]

CALLS = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": " Weather in Köln and Rome? "},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Two calls.",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {
                "name": "get_weather", "arguments": {"city": "Köln", "exact": True, "Days": 1, "at": {"z": [1, None, "a\"b"], "a": {}}}}},
            {"id": "2", "type": "function", "function": {"name": "noop", "arguments": {}}},
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "{\"sky\": \"clear\"}"},
    {"role": "tool", "tool_call_id": "2", "content": "rain,\n2 days"},
]
CALLED = CALLS + [
    {"role": "assistant", "content": "<|channel>thought\nEasy.\n<channel|>Sunny, then rain."},
    {"role": "user", "content": "Thanks"},
]
OWN_RESULTS = [
    CALLS[1],
    CALLS[2] | {"tool_responses": [
        {"name": "get_weather", "response": {"sky": "clear", "degrees": 21.5}}, {"name": "noop", "response": "ok"}]},
]

CASES = {
    "loops": (LOOPS, CHAT, True, None),
    "loops_raise": (LOOPS, CHAT + [CHAT[-1]], False, None),
    "tools_json": (TOOLS_JSON, TOOL_CHAT, False, TOOLS),
    "tools_none": (TOOLS_JSON, CHAT, True, None),
    "blocks": (BLOCKS, CHAT, True, None),
    "namespace": (NAMESPACE, CHAT, False, None),
    "strings": (STRINGS, STRING_CHAT, False, None),
    "values": (VALUES, CHAT, True, None),
    "generation": (GENERATION, CHAT, True, None),
    "controls": (CONTROLS, PARTS_CHAT, False, None),
    "raises": (RAISES, CHAT, False, None),
    "dictionaries": (DICTIONARIES, CALLS, True, TOOLS, {"enable_thinking": True}),
    "dictionaries_plain": (DICTIONARIES, CALLED, True, None),
    "dictionaries_results": (DICTIONARIES, OWN_RESULTS, True, TOOLS),
    "dictionaries_asking": (DICTIONARIES, CALLS[:3], True, TOOLS[1:], {"enable_thinking": True}),
}


def render(template, messages, add_generation_prompt, tools, kwargs=None):
    case = {"template": template, "bos_token": "<s>", "eos_token": "</s>", "messages": messages}
    case["add_generation_prompt"] = add_generation_prompt
    if tools is not None:
        case["tools"] = tools
    if kwargs is not None:
        case["kwargs"] = kwargs
    try:
        rendered, _ = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            bos_token=case["bos_token"],
            eos_token=case["eos_token"],
            **(kwargs or {}),
        )
        return case | {"expected": rendered[0]}
    except jinja2.exceptions.TemplateError as error:
        return case | {"expected_error": error.message}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="directory of the fixtures (default: the tests')")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, given in CASES.items():
        case = render(*given)
        (args.out / f"{name}.json").write_text(json.dumps(case, indent=2, ensure_ascii=False) + "\n")
        print(f"== {name}\n{case.get('expected', 'error: ' + str(case.get('expected_error')))}")


if __name__ == "__main__":
    main()
