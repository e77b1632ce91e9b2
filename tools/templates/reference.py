"""Renders chat templates as `transformers` does: `jinja2` in a sandbox, with the additions that templates expect."""

import datetime
import json

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """`{% generation %}` around what an assistant wrote: a call block, whose text stays as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_generated"), [], [], body).set_lineno(line)

    def _generated(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.now(datetime.timezone.utc).strftime(form)


def environment():
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = strftime_now
    return made


ENVIRONMENT = environment()


def case(template, context):
    """The template and its variables with `expected`, the text, or `error`, what Python says instead."""
    made = {"template": template, "context": context}
    try:
        # A context of its own: nothing that a template does may change the next one's.
        made["expected"] = ENVIRONMENT.from_string(template).render(**json.loads(json.dumps(context)))
        made["expected"].encode()
    except Exception as error:  # whatever Python raises
        made.pop("expected", None)
        made["error"] = f"{type(error).__name__}: {error}"
    return made
