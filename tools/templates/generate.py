#!/usr/bin/env python3
"""Writes expressions and templates by chance, with what Python's jinja2 renders of them, as lines of JSON.

Of each kind of operation (operators, slices, filters, tests, methods, functions, statements) all combinations with
sample values are made, and a share of them is drawn; then expressions and templates are composed at random. With
`--fixture` few of each are written, for the tests that always run.
"""

import argparse
import itertools
import json
import random
import re
from pathlib import Path

from reference import case

CONTEXT = {
    "messages": [
        {"role": "system", "content": "  Be brief.\n"},
        {"role": "user", "content": "Größe \"x\" & <b>it's</b> \\ 天气😀?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {
                        "name": "look_up",
                        "arguments": {"city": "Köln", "days": 3, "x": 0.5, "exact": True, "note": None, "l": [1, "a"]},
                    },
                }
            ],
        },
        {"role": "tool", "content": "{\"sky\": \"clear\"}", "tool_call_id": "c1"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nClear."},
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "image"}, {"type": "text", "text": "now?"}]},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "look_up",
                "description": "Looks up <weather> & more",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string", "enum": ["Köln", "a/b"]},
                        "items": {"type": "array", "items": {"type": "integer"}},
                        "limit": {"type": ["number", "null"], "default": 1.5},
                    },
                    "required": ["city"],
                },
            },
        },
        {"type": "function", "function": {"name": "noop", "parameters": {}}},
    ],
    "documents": None,
    "add_generation_prompt": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "s": "Hello, World",
    "u": "  größe ßx\t天 😀\n ",
    "q": "it's \"q\"",
    "e": "",
    "n": 7,
    "z": 0,
    "neg": -3,
    "big": 12345678901234567890,
    "f": 2.5,
    "t": True,
    "no": False,
    "nil": None,
    "l": [3, 1, 2],
    "ls": ["b", "A", "c", "a"],
    "mixed": [1, "two", None, True, 2.5, ["x"], {"k": "v"}],
    "el": [],
    "d": {"b": 1, "a": "x", "C": None, "items": [1, 2]},
    "ed": {},
    "pairs": [["x", 1], ["y", 2]],
    "recs": [{"n": "b", "v": 2, "g": "x"}, {"n": "A", "v": 1, "g": "y"}, {"n": "c", "v": 3, "g": "x"}, {"v": 0, "g": "Y"}],
    "tree": [{"n": "1", "kids": [{"n": "1.1", "kids": []}, {"n": "1.2", "kids": [{"n": "x", "kids": []}]}]}, {"n": "2", "kids": []}],
    "enable_thinking": False,
}

STRINGS = ["s", "u", "q", "e", "'abc'", "\"it's\"", "'a,b,,c'", "' x y  z '", "'x' 'y'", "'<a>&'", "'Aßb'", "'12'", "'-3.7'",
           "'a\\nb\\r\\nc'", "'\\u00e9\\x41\\t'", "messages[1].content", "messages[4]['content']", "bos_token", "'ab cd-ef (gh'", "'\\\\d\\q'",
           "'1_0'", "' 42 '", "'1e3'", "'hello world of long words here'", "'İI'", "'abcabc'", "'\\x00\\x1f\\x7f\\xa0\\u2028'"]
NUMBERS = ["n", "z", "neg", "f", "0", "1", "2", "-1", "3.0", "0.1", "1e-7", "1e16", "1e15", "123456789.123", "10", "t", "no",
           "100000000000000000000", "1_000", "0x1f", "2.675", "-2.5", "0.0", "1.5e300", "7.0", "big", "9007199254740993"]
LISTS = ["l", "ls", "mixed", "el", "[1, 2, 3]", "['a', 'b']", "pairs", "messages", "recs", "(1, 2)", "('x',)", "()", "range(4)",
         "range(5, 0, -2)", "[none, 1]", "[[1, 2], [3]]", "['it\\'s', \"q\\\"\"]", "[1.0, 1e-7, -0.0]", "[true, 1, 1.0]", "['b', 'a', 'B']",
         "messages[5].content", "d.items()", "d.keys()", "d.values()", "ls | map('upper')", "recs | map(attribute='v')"]
DICTS = ["d", "ed", "{'a': 1, 'b': 'x'}", "messages[0]", "tools[0]", "tools[0].function.parameters.properties", "{1: 'i', 'k': [1]}",
         "dict(a=1, b=none)", "messages[2].tool_calls[0].function.arguments", "{'x': 2.0, 'y': (1,)}"]
OTHERS = ["nil", "none", "missing", "messages[0].missing", "true", "messages[99]", "namespace(a=1)", "('x' if no)", "range", "s.upper"]
VALUES = STRINGS + NUMBERS + LISTS + DICTS + OTHERS
SMALL = ["s", "e", "q", "'12'", "'abc'", "n", "z", "neg", "f", "t", "1e-7", "l", "mixed", "el", "(1, 2)", "range(4)", "d", "ed", "nil", "missing",
         "ls | map('upper')", "d.items()", "big"]

FILTERS = {
    "abs": [""], "attr": ["('a')", "('upper')", "('items')"], "batch": ["(2)", "(2, 'x')", "(3, fill_with=0)"], "capitalize": [""],
    "center": ["(9)", "", "(width=4)"], "count": [""], "d": ["('x')"], "default": ["('x')", "('x', true)", "('x', boolean=true)", "", "(default_value=1)"],
    "dictsort": ["", "(true)", "(by='value')", "(reverse=true)", "(false, 'key', true)"], "e": [""], "escape": [""], "first": [""],
    "float": ["", "(1.5)", "(default='x')"], "forceescape": [""], "format": ["(1)", "('a', 2)", "(x=1)", "()"],
    "groupby": ["('g')", "('role')", "('n', default='z')", "('g', case_sensitive=true)"],
    "indent": ["", "(2)", "(2, true)", "(first=true)", "(width=3, blank=true)", "('> ')", "('> ', true, true)"],
    "int": ["", "(5)", "(default=-1)", "(0, 16)", "(base=2)"], "items": [""], "join": ["", "(', ')", "('-', attribute='n')", "(d='|')", "(attribute='v')", "(1)"],
    "last": [""], "length": [""], "list": [""], "lower": [""],
    "map": ["('upper')", "(attribute='n')", "(attribute='role')", "('string')", "('default', 'x')", "(attribute='n', default='?')", "('int')", "('length')",
            "('trim')", "(attribute='function.name')", "('first')", "(attribute=0)", "('tojson')", "('replace', 'a', 'b')", "(attribute='content.0.type')"],
    "max": ["", "(attribute='v')", "(true)", "(case_sensitive=true)"], "min": ["", "(attribute='v')", "(true)"],
    "reject": ["", "('odd')", "('string')", "('equalto', 1)", "('none')"],
    "rejectattr": ["('n')", "('n', 'defined')", "('role', 'equalto', 'user')", "('v', 'gt', 1)", "('g', 'in', ['x'])"],
    "replace": ["('a', 'b')", "('b', 'xx', 1)", "('', '-')", "(1, 2)", "(old='a', new='')"], "reverse": [""],
    "round": ["", "(1)", "(2)", "(1, 'floor')", "(method='ceil')", "(0, 'floor')"],
    "safe": [""], "select": ["", "('odd')", "('string')", "('ne', 1)", "('defined')", "('in', [1, 'a'])"],
    "selectattr": ["('n')", "('n', 'defined')", "('role', 'equalto', 'user')", "('v', '>', 1)", "('tool_calls', 'defined')", "('role', 'in', ['tool'])"],
    "slice": ["(2)", "(3, 'x')"], "sort": ["", "(reverse=true)", "(attribute='v')", "(attribute='n')", "(case_sensitive=true)", "(true, true)", "(attribute='g,v')"],
    "string": [""], "sum": ["", "(attribute='v')", "(start=10)", "(start=[])"], "title": [""],
    "tojson": ["", "(indent=2)", "(ensure_ascii=true)", "(separators=(',', ':'))", "(sort_keys=true)", "(indent=4, sort_keys=true)", "(true)", "(indent=0)", "(indent='\\t')"],
    "trim": ["", "('x')", "(chars=' a')"], "truncate": ["(5)", "(9)", "(9, true)", "(9, false, '…')", "(6, leeway=0)", "(length=12, end='')", ""],
    "unique": ["", "(true)", "(attribute='g')", "(case_sensitive=true)"], "upper": [""], "urlencode": [""], "wordcount": [""],
    "nofilter": [""],
}
TESTS = ["boolean", "callable", "defined", "divisibleby 2", "divisibleby(3)", "eq 1", "equalto('a')", "== 7", "even", "odd", "false", "true", "filter", "float",
         "ge 2", "gt 2", "greaterthan(1)", "in [1, 'x', none]", "in 'abcs'", "in d", "integer", "iterable", "le 2", "lower", "lt 3", "lessthan 4", "mapping",
         "ne 1", "none", "number", "sameas none", "sameas true", "sequence", "string", "undefined", "upper", "test", "escaped", "notest"]
METHODS = {
    "str": ["capitalize()", "casefold()", "center(9)", "center(8, '*')", "count('a')", "count('b', 1)", "count('')", "endswith('c')", "endswith(('c', 'd'))",
            "expandtabs(4)", "expandtabs()", "find('b')", "find('z')", "find('b', 2)", "find('l', -3)", "format(1, 2)", "index('a')", "index('b', 1)",
            "isalnum()", "isalpha()", "isascii()", "isdecimal()", "isdigit()", "isidentifier()", "islower()", "isnumeric()", "isprintable()", "isspace()",
            "istitle()", "isupper()", "join(['a', 'b'])", "join([])", "join('xyz')", "join([1])", "ljust(8)", "ljust(8, '.')", "lower()", "lstrip()", "lstrip('ab')",
            "partition('b')", "partition(',')", "removeprefix('a')", "removesuffix('c')", "replace('a', 'XY')", "replace('b', '', 1)", "replace('', '-')",
            "rfind('b')", "rfind('b', 0, 3)", "rindex('a')", "rjust(8)", "rjust(8, '0')", "rpartition('b')", "rsplit()", "rsplit(',')", "rsplit(',', 1)", "rsplit(None, 1)",
            "rsplit(maxsplit=2)", "rstrip()", "rstrip('c')", "split()", "split(',')", "split(',', 1)", "split(sep=',')", "split(sep=',', maxsplit=1)", "split(maxsplit=1)",
            "split(none, 1)", "split('')", "splitlines()", "splitlines(true)", "splitlines(keepends=true)", "startswith('a')", "startswith(('x', 'a'))", "startswith('b', 1)",
            "strip()", "strip('a x')", "strip(none)", "swapcase()", "title()", "upper()", "zfill(6)", "nothing()", "upper", "encode()"],
    "list": ["index(1)", "index(2)", "index('a')", "count(1)", "count('a')", "append(1)", "copy()", "pop()", "index(1, 1)", "sort()"],
    "dict": ["get('a')", "get('zz')", "get('zz', 5)", "items()", "keys()", "values()", "copy()", "update({})", "pop('a')", "a", "items", "get('items')", "nope", "keys"],
    "number": ["real", "is_integer()", "upper()", "bit_length()", "foo"],
}
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
SLICES = ["[0]", "[-1]", "[9]", "[1:]", "[:-1]", "[::-1]", "[1:-1]", "[::2]", "[-2:]", "[:2]", "[2:0:-1]", "[-1:-4:-1]", "[5:1]", "['a']", "[n]", "[neg:]",
          "[none:2]", "[::-2]", "[-9:9]", "[1.0]", "[true]", ".0", "[:0:-1]", "['role']", "['items']"]
FORMATS = ["%s", "%d", "%5d|", "%-5s|", "%05d", "%.2f", "%r", "%x", "%X", "%o", "%e", "%g", "%+d", "%%", "%5.1f|", "%c", "%i", "%10s|", "%.3s", "%G", "%#x", "% d"]
BRACES = ["{}", "{0}", "{:>5}|", "{:<5}|", "{:^7}|", "{:05d}", "{:.2f}", "{:,}", "{!r}", "{:x}", "{:+}", "{:*^9}", "{:e}", "{:%}", "{:g}", "{:_}", "{:#x}", "{:b}", "{{}}",
          "{0}{0}", "{:5}|", "{:.3}|", "{:=+6}", "{!s:>6}|", "{:d}", "{:s}"]


# Python would compute for days.
SMALL_POWERS = ["0", "1", "2", "-1", "3.0", "0.1", "-2.5", "t", "nil", "missing", "'12'"]


def operation(left, operator, right, rng=random.Random(0)):
    if operator == "**":
        return f"{left} ** {rng.choice(SMALL_POWERS)}"
    return f"{left} {operator} {right}"


def product(*parts):
    return list(itertools.product(*parts))


def kinds():
    """All combinations of each kind, as sources of expressions."""
    made = {
        "printed": [value for value in VALUES],
        "in a list": [f"[{value}]" for value in VALUES] + [f"{{'k': {value}}}" for value in VALUES] + [f"({value},)" for value in VALUES],
        "operators": [operation(a, op, b) for a, op, b in product(SMALL + NUMBERS, OPERATORS, SMALL + NUMBERS)],
        "numbers": [operation(a, op, b) for a, op, b in product(NUMBERS, OPERATORS[:7] + OPERATORS[8:14], NUMBERS)],
        "signs": [f"{sign}{value}" for sign, value in product(["-", "+", "not ", "--"], SMALL + NUMBERS)],
        "chains": [f"{a} {x} {b} {y} {c}" for a, x, b, y, c in product(["1", "n", "2.0"], ["<", "==", ">=", "in"], ["2", "l", "[1]"], ["<", "!=", "in", "not in"], ["3", "[[1]]", "l"])],
        "precedence": [f"{a} {x} {b} {y} {c}" for a, x, b, y, c in product(["2", "-3", "n"], OPERATORS[:8], ["2", "-1", "f"], OPERATORS[:8], ["3", "2"])],
        "slices": [f"({value}){part}" for value, part in product(VALUES, SLICES)],
        "filters": [f"{'(' + v + ')' if ' ' in v else v} | {name}{args}" for name, every in FILTERS.items() for v, args in product(VALUES, every)],
        "tests": [f"({value}) is {'not ' if index % 5 == 0 else ''}{test}" for index, (value, test) in enumerate(product(VALUES, TESTS))],
        "methods of strings": [f"{value}.{method}" for value, method in product([v for v in STRINGS if " " not in v or v[0] in "'\""], METHODS["str"])],
        "methods of lists": [f"({value}).{method}" for value, method in product(LISTS, METHODS["list"])],
        "methods of dicts": [f"({value}).{method}" for value, method in product(DICTS, METHODS["dict"])],
        "methods of others": [f"({value}).{method}" for value, method in product(NUMBERS + OTHERS, METHODS["number"])],
        "percent": [f"'{form}' % {value if value[0] == '(' else '(' + value + ')'}" for form, value in product(FORMATS, SMALL + NUMBERS)],
        "braces": [f"'{form}'.format({value})" for form, value in product(BRACES, SMALL + NUMBERS)],
        "format more": ["'%s-%s' % ('a', 1)", "'%(x)s' % {'x': 2}", "'%s' % [1]", "'%s %s' % 'a'", "'%d' % 'a'", "'%*d|' % (5, 3)", "'%.*f' % (2, 1.234)", "'%s%%' | format(3)",
                        "'{a} {b[0]} {c.x}'.format(a=1, b=[2], c={'x': 3})", "'{0[k]}'.format({'k': 1})", "'{:{}}|'.format('a', 5)", "'{x!r:>5}'.format(x='a')", "'{} {0}'.format(1)",
                        "'%(a)5.2f|' % {'a': 3}", "'{0.upper}'.format('a') is string", "'%s' % (1, 2)", "'a%' % 1", "'{'.format(1)", "'}'.format(1)", "'%s' % missing", "'%s' % nil"],
        "conditions": [f"{a} if {b} else {c}" for a, b, c in product(["s", "missing", "1"], SMALL, ["n", "nil"])] + [f"{a} if {b}" for a, b in product(["s", "1"], SMALL)],
        "functions": ["range(3)", "range(3) | list", "range(1, 7, 2) | list", "range(3, 0, -1) | list", "range(0)", "range(2) + [1]", "range(1.5)", "range()", "range(2, 1) | list",
                      "dict(a=1)", "dict({'a': 1}, b=2)", "dict([('x', 1)])", "dict(pairs)", "dict(1)", "dict(**d)", "namespace(a=1).a", "namespace(d).b", "namespace()", "namespace(a=1)", "namespace(x=[1]).x",
                      "cycler('a', 'b').next()", "cycler('a').current", "joiner()()", "joiner('-')", "lipsum(n=1)", "strftime_now('%%')", "raise_exception('no')", "missing()", "s()", "nil.x", "missing.x", "missing['x']",
                      "missing[0]", "nil[0]", "n.x", "n[0]", "s.x", "s['x']", "s.upper is defined", "s['upper'] is defined", "d.items is callable", "d['items']", "d.items() | list", "d.get is callable",
                      "messages[0]['get'] is defined", "l.append is defined", "dict.fromkeys is defined", "(1, 2).count(1)", "range(5).stop", "range(9)[2]", "range(9)[-1]", "loop", "caller", "varargs", "kwargs", "self is defined",
                      "messages | length", "'a' ~ 1 ~ none ~ 2.0 ~ [1]", "s ~ missing", "-n | abs", "-f | string", "(n, s)", "n, s", "{}", "{'a': {'b': [1, (2,)]}}", "{1: 2}.1", "{1: 'a'}[1.0]", "{true: 1}[1]", "{1: 1, true: 2}",
                      "{'a': 1, 'a': 2}", "{[1]: 2}", "[1, 2,]", "{'a': 1,}", "(1)", "((1))", "(1,)", "()", "[[]]", "''", "1.5.real", "1 .real", "'a' 'b' \"c\"", "1e3", "1.5e-3", "0b11", "0o17", "0xFF", "1_0.5", "00", "not not n",
                      "not n == 7", "n is not none and n > 3", "n is defined and s is defined", "n in l or s in ls", "1 if 0 else 2 if 0 else 3", "(1 if 0) is defined", "s | upper | lower | title", "s.split(',')[1].strip()",
                      "l | sort | reverse | list", "ls | sort(reverse=true) | join(',') | upper", "messages | map(attribute='role') | unique | list", "messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | length",
                      "recs | groupby('g') | map(attribute='grouper') | list", "recs | groupby('g') | map('last') | map('length') | list", "(recs | groupby('v'))[0]", "recs | groupby('g') | list", "recs | map(attribute='n') | list",
                      "recs | sum(attribute='v')", "'%s' | format(s)", "'<' | e ~ '<'", "('<' | safe) ~ '<'", "('<' | e) + '&'", "['<' | e]", "('<' | e) | length", "'<' | e | upper", "'x' | e == 'x'", "'a' < 'B'", "'é' > 'z'", "[1, 'a'] < [2]",
                      "[1, 'a'] < [1, 2]", "(1, 2) < (1, 3)", "(1, 2) == [1, 2]", "none < 1", "'1' == 1", "1 == true", "0 == false", "'' == false", "none == false", "missing == missing", "missing == none", "missing is none", "[] == ()",
                      "2 ** 100", "2 ** 200", "2 ** -1", "0 ** 0", "(-8) ** 0.5", "10 ** 20 // 3", "-7 // 2", "-7 % 3", "7 % -3", "-7.5 // 2", "7.5 % -2", "5 / 0", "5 % 0", "5 // 0", "1e308 * 10", "0.1 + 0.2", "1 / 3", "100 / 10", "3 * 1.0",
                      "true + true", "true * 's'", "'ab' * 2", "3 * 'ab'", "'ab' * -1", "'ab' * 1.5", "[0] * 3", "(1,) * 2", "[1] + (2,)", "[1] + [2]", "(1,) + (2,)", "'a' + 1", "1 + 'a'", "'a' + none", "'a' + missing", "missing + 'a'", "-'a'", "+s",
                      "{} + {}", "l - l", "d == d", "d == {'b': 1}", "1 in 'a1'", "'a' in missing", "missing in l", "missing in 's'", "1 in d", "'a' in d.keys()", "('a', 'x') in d.items()", "2 in range(4)", "'x' in ls | map('lower')", "[1] in pairs"],
    }
    return made


def simple(value):
    return value if re.fullmatch(r"[\w.]+|'[^' ]*'", value) else f"({value})"


def expression(rng, depth=3):
    """An expression composed at random."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(VALUES)
    inner = lambda: simple(expression(rng, depth - 1))
    kind = rng.randrange(13)
    if kind == 0:
        return operation(inner(), rng.choice(OPERATORS), inner(), rng)
    if kind in (1, 2, 3):
        name = rng.choice(list(FILTERS))
        return f"{inner()} | {name}{rng.choice(FILTERS[name])}"
    if kind == 4:
        return f"{inner()} is {rng.choice(TESTS)}"
    if kind == 5:
        return f"{inner()}{rng.choice(SLICES)}"
    if kind == 6:
        return f"{simple(rng.choice(STRINGS))}.{rng.choice(METHODS['str'])}"
    if kind == 7:
        return f"{inner()} if {inner()} else {inner()}"
    if kind == 8:
        return f"[{inner()}, {inner()}]"
    if kind == 9:
        return f"{{{rng.choice(STRINGS)}: {inner()}}}"
    if kind == 10:
        return f"{simple(rng.choice(STRINGS))} ~ {inner()}"
    if kind == 11:
        return f"{simple(rng.choice(DICTS))}.{rng.choice(METHODS['dict'])}"
    return f"{simple(rng.choice(LISTS))} | {rng.choice(['map', 'select', 'selectattr', 'sort', 'groupby', 'unique'])}" + rng.choice(
        ["", "('upper')", "(attribute='v')", "('g')", "('string')"]
    )


# Kinds whose sources are all different.
WHOLE = ("functions", "format more")
# Scopes, loops, macros and white space, one case each.
STATEMENTS = [
    "{% for i in [1] %}{{ bos_token }}{% endfor %}{% set bos_token = 1 %}{{ bos_token }}",
    "{{ x }}{% if no %}{% set x = 1 %}{% endif %}{{ x }}", "{% if t %}{% set s = 1 %}{% endif %}{{ s }}", "{% if no %}{% set s = 1 %}{% endif %}{{ s }}",
    "{% set x = 0 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% for s in l %}{{ s }}{% endfor %}{{ s }}",
    "{% for i in l %}{% set s = s ~ i %}{{ s }}{% endfor %}{{ s }}", "{% set s = s ~ '!' %}{{ s }}", "{% for i in l %}{% if i == 1 %}{% set k = i %}{% endif %}{{ k }}{% endfor %}",
    "{% macro f() %}{{ g }}{% endmacro %}{{ f() }}{% set g = 5 %}{{ f() }}", "{% macro f() %}{{ f2() }}{% endmacro %}{% macro f2() %}2{% endmacro %}{{ f() }}",
    "{{ f() }}{% macro f() %}x{% endmacro %}", "{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}", "{% macro f(x) %}{% set s = x %}{{ s }}{% endmacro %}{{ f(1) }}{{ s }}",
    "{% macro f(a, b=a, c=b ~ a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}|{{ f(1, c=2) }}|{{ f() }}", "{% macro f(a=b, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f() }}{{ f(b=3) }}",
    "{% macro f(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ f() }}", "{% macro f(caller) %}{{ caller() }}{% endmacro %}{% call f() %}x{% endcall %}", "{% macro f(caller=none) %}{{ caller() }}{% endmacro %}{% call f() %}x{% endcall %}",
    "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}", "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}", "{% macro f(x) %}<{{ caller(x, 2) }}>{% endmacro %}{% call(a, b) f(1) %}{{ a }}{{ b }}{% endcall %}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 'x', a=2) }}", "{% macro f(varargs) %}{{ varargs }}{% endmacro %}{{ f(1) }}", "{{ f }}{% macro f() %}{% endmacro %}{{ f }}{{ f.name }}{{ f.arguments }}",
    "{% macro outer() %}{% macro inner() %}{{ caller() }}{% endmacro %}{% call inner() %}i{% endcall %}{% endmacro %}{% call outer() %}o{% endcall %}", "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}{% endmacro %}{{ f() }}", "{% set x %}{% set y = 1 %}a{{ y }}{% endset %}{{ x }}{{ y }}", "{% set x | upper | length %}ab{% endset %}{{ x + 1 }}",
    "{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}", "{% with s = s ~ '1' %}{{ s }}{% endwith %}{{ s }}", "{% with (a, b) = (1, 2) %}{{ a }}{{ b }}{% endwith %}",
    "{% filter upper %}a{% set f2 = 1 %}{{ f2 }}{% endfilter %}{{ f2 }}", "{% filter length %}abc{% endfilter %}", "{% filter replace('a', s) | trim %} a {% endfilter %}",
    "{% generation %}{% set gen = 1 %}{{ gen }}{% endgeneration %}{{ gen }}", "{% for i in l %}{% generation %}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% for i in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{% for m in messages %}{% break %}{% else %}e{% endfor %}", "{% for m in l %}{% continue %}{% else %}e{% endfor %}", "{% for m in l %}x{% if loop.index == 2 %}{% break %}{% endif %}{% else %}e{% endfor %}", "{% for x in [] %}{% else %}{{ x is defined }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ loop.nextitem }}{% endfor %}", "{% for x in l if loop.index > 1 %}{{ x }}{% endfor %}", "{% for a in l %}{% for b in l if loop.index == 1 %}{{ b }}{% endfor %}{% endfor %}",
    "{% set ns = namespace(k=3) %}{% for x in l if x != ns.k %}{{ x }}{% set ns.k = 2 %}{% endfor %}", "{% for x in l if x > loop_min %}{{ x }}{% else %}none{% endfor %}", "{% for a in l %}{% for b in [1] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for a in l %}{% set outer = loop %}{% for b in l %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}", "{% for a in l %}{{ loop }}{% endfor %}", "{% for x in l %}{{ loop['index'] }}{{ loop['last'] }}{% endfor %}", "{% for loop in l %}{% endfor %}", "{% for x in l %}{% set loop = 1 %}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}", "{% for x in tree recursive %}{{ loop.depth }}{{ x.n }}[{{ loop(x.kids) }}]{% else %}-{% endfor %}", "{% for x in l %}{{ loop([1]) }}{% endfor %}",
    "{% for x in tree recursive %}{{ x.n }}{% set inner = loop(x.kids) %}{{ inner | length }}{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for a, b in l %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in ['ab', 'cd'] if a %}{{ loop.previtem }}{{ a }}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in nil %}{% endfor %}", "{% for x in missing %}{% else %}e{% endfor %}", "{% for c in 'aé' %}[{{ c }}]{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% for x in l | sort | reverse %}{{ x }}{{ loop.last }}{% endfor %}", "{% for x in d %}{{ x }}{% endfor %}",
    "{% set g = l | map('string') %}{{ g | list }}{{ g | list }}{{ g | first is defined }}", "{% set g = l | select('odd') %}{% if g %}{% for x in g %}{{ x }}{% endfor %}{% endif %}{{ g | join }}", "{% if recs | selectattr('nope') %}t{% endif %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set (a, b) = [b, s] %}{{ a }}{{ b }}", "{% set a = b = 1 %}", "{% set a = 1, %}{{ a }}", "{% set ns = namespace() %}{% set ns.a, x = 1, 2 %}{{ ns.a }}{{ x }}", "{% set d.x = 1 %}", "{% set nope.x = 1 %}", "{% set ns = namespace(a=1) %}{{ ns }}{{ ns.b is defined }}{{ ns['a'] }}",
    "{% set true = 1 %}", "{% set 1 = 2 %}", "{% if %}{% endif %}", "{% endif %}", "{% for %}", "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{% unknown %}", "{% if t %}", "{{ 'a", "{# x", "{% raw %}x", "{{ 1 }", "{% if t: %}x{% endif %}", "{% do 1 %}", "{% print 1, 'a' %}", "{% include 'x' %}", "{% extends 'x' %}",
    "{% block b %}{{ s }}{{ bl }}{% endblock %}{% set bl = 1 %}", "{% set bl = 1 %}{% for i in l %}{% block b %}{{ bl }}{{ i }}{% endblock %}{% endfor %}", "{% break %}", "{{ self }}", "{{ loop }}", "{{ s is string is true }}", "{{ not s is string }}", "{{ s is not string }}", "{{ n is divisibleby 7 and t }}", "{{ n is in l }}",
    "{{ 1 if t }}{{ 2 if no }}{{ 3 if no else 4 if no else 5 }}", "{{ s|upper|lower }}", "{{ s | upper ~ 'x' }}", "{{ -1 | abs }}", "{{ -n.real }}", "{{ 2 ** 3 ** 2 }}", "{{ -2 ** 2 }}", "{{ 2 * 3 ~ 4 }}", "{{ 1 ~ 2 + 3 }}", "{{ 'a' 'b' ~ 'c' }}", "{{ {'a': 1}['a'] }}", "{{ {'a': {'b': 1}}.a.b }}", "{{ [1, 2][-1] }}", "{{ (1, 2)[0] }}",
    "a\n", "a\n\n", "\n", "", "a\r\nb\rc\n", "{{ 'a\r\nb' }}", "  {% if t %}\n  x\n  {% endif %}\n  y\n", "  {%+ if t %}x{% endif +%}\n y", "{%- if t -%}  x  {%- endif -%}  y", "a {%- if t %} b {% endif -%} \n c", "{% if t %}  \n{% endif %}", "\t{% set a = 1 %}\t\nb", " {# c #} \nx", "x {#- c -#} y", "{# c #}\nx", "{{ 1 }}\nx", "{{ 1 -}}\n x",
    "{{- 1 }}", " {{- 1 -}} ", "a{% raw %}  {{ b }}  {% endraw %}c", "a  {%- raw -%}  {{ b }}  {%- endraw -%}  c", "{% raw %}\nx\n{% endraw %}\ny", "  {% raw %}x{% endraw %}", "x\n  {% raw %}  y\n  {% endraw %}\nz", "{%raw%}a{%endraw%}", "{% raw %}{% endraw %}{% raw %}{% endraw %}", "\u2003{%- if t %}x{% endif %}", "\u00a0 {% if t %}x{% endif %}",
    "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}", "{{ {'a': {'b': 2}}}}", "{ { 1 } } {1} %} }}", "{%if t%}x{%endif%}", "{{s}}", "{%\nif\nt\n%}x{%\nendif\n%}", "{{ '\\n\\t\\\\\\'\\x41\\u00e9\\U0001F600\\101\\q' }}", "{{ '\\é' }}", "{{ 'é\\n' }}", "{{ 'a\nb' }}", "{{ '\\\nx' }}", "{{ '\\x4' }}", "{{ '\\ud83d' }}",
    "{{ messages | tojson(indent=2) }}", "{{ tools | tojson }}", "{% for t in tools %}{{ t.function.parameters.properties.items() | list }}{% endfor %}", "{{ tools[0].function.parameters.properties.items }}", "{{ tools[0].function.parameters.properties['items'] }}", "{{ tools[0]['function']['parameters']['properties'] | dictsort }}",
    "{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}", "{% set j = joiner() %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{{ messages[1:] | map(attribute='role') | join('>') }}", "{{ raise_exception() }}", "{{ raise_exception(1) }}", "{{ range(100001) }}",
]

NAMES = ["a", "b", "s", "n", "l", "messages", "x"]
SPACE = ["", "", "", " ", "\n", "\n  ", "  \n", "\t", "\n\n", " \n \n ", "text", " a ", "é\n", "{", "}", "# ", "\r\n"]
SIGNS = ["", "", "", "-", "+"]


class Composer:
    """Templates composed at random."""

    def __init__(self, rng):
        self.rng = rng
        self.macros = []

    def tag(self, inner):
        return f"{{%{self.rng.choice(SIGNS)} {inner} {self.rng.choice(SIGNS)}%}}"

    def value(self):
        rng = self.rng
        return rng.choice([
            lambda: rng.choice(NAMES), lambda: rng.choice(SMALL), lambda: rng.choice(VALUES), lambda: expression(rng, 1),
            lambda: f"{rng.choice(NAMES)} ~ {rng.choice(SMALL)}", lambda: f"{rng.choice(NAMES)} is defined",
            lambda: "ns.v", lambda: "loop.index" , lambda: f"loop.{rng.choice(LOOP)}", lambda: "m.role", lambda: "m.content",
        ])()

    def printed(self):
        close = self.rng.choice(["", "", "-"])
        return f"{{{{{self.rng.choice(['', '', '-', '+'])} {self.value()} {close}}}}}"

    def body(self, depth):
        parts = [self.rng.choice(SPACE)]
        for _ in range(self.rng.randint(1, 3)):
            parts.append(self.statement(depth))
            parts.append(self.rng.choice(SPACE))
        return "".join(parts)

    def statement(self, depth):
        rng = self.rng
        if depth == 0:
            return self.printed()
        kind = rng.randrange(17)
        name = rng.choice(NAMES)
        if kind <= 2:
            return self.printed()
        if kind == 3:
            made = self.tag(f"if {self.value()}") + self.body(depth - 1)
            while rng.random() < 0.3:
                made += self.tag(f"elif {self.value()}") + self.body(depth - 1)
            if rng.random() < 0.5:
                made += self.tag("else") + self.body(depth - 1)
            return made + self.tag("endif")
        if kind in (4, 5):
            target = rng.choice(["m", "x", "a, b", "k, v", "i", "(a, b)"])
            iterable = rng.choice(["messages", "l", "ls", "pairs", "d.items()", "d", "el", "range(3)", "recs", "missing", "s", "ls | sort", "recs | selectattr('n')", "[1, 2]", "d | dictsort", "nil", "'ab', 'cd'"])
            if target not in ("m", "x", "i"):
                iterable = rng.choice(["pairs", "d.items()", "d | items", "d | dictsort", "['ab', 'cd']", "recs | groupby('g')"])
            test = rng.choice(["", "", f" if {rng.choice(['loop is defined', 'm is mapping', 'x', 'a', self.value()])}"])
            made = self.tag(f"for {target} in {iterable}{test}") + self.body(depth - 1)
            if rng.random() < 0.3:
                made += self.tag(f"if {rng.choice(['loop.index > 1', 'loop.first', 'loop.last', 'x', 'm'])}") + self.tag(rng.choice(["break", "continue"])) + self.tag("endif") + self.body(0)
            if rng.random() < 0.4:
                made += f"{{{{ loop.{rng.choice(LOOP)} }}}}"
            if rng.random() < 0.3:
                made += self.tag("else") + self.body(depth - 1)
            return made + self.tag("endfor")
        if kind in (6, 7):
            return self.tag(f"set {name} = {self.value()}") + self.printed()
        if kind == 8:
            return self.tag(f"set {name}{rng.choice(['', ' | upper', ' | trim | length'])}") + self.body(depth - 1) + self.tag("endset") + f"[{{{{ {name} }}}}]"
        if kind == 9:
            return self.tag(f"with {name} = {self.value()}, b = {name}") + self.body(depth - 1) + self.tag("endwith")
        if kind == 10:
            filters = rng.choice(["upper", "trim", "replace('a', 'b') | title", "indent(2)", "length"])
            return self.tag(f"filter {filters}") + self.body(depth - 1) + self.tag("endfilter")
        if kind in (11, 12):
            macro = rng.choice(["f", "g"])
            signature = rng.choice(["a", "a, b='B'", "a=1, b=a", "", "x, a=none, b=x ~ '!'", "a, b=missing", "a=n, n=a"])
            extra = rng.choice(["", "", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ caller(1) }}", "{{ caller is defined }}", f"{{{{ {name} }}}}"])
            call = rng.choice([f"{macro}()", f"{macro}(1)", f"{macro}(1, 2)", f"{macro}(a=3)", f"{macro}(1, 2, 3)", f"{macro}(b=1, a=2)", f"{macro}(1, z=2)", f"{macro}(*l)", f"{macro}(**d)", f"{macro}(*[1], **{{'b': 2}})", f"{macro}", f"{macro}(s) | trim"])
            before = f"{{{{ {call} }}}}" if rng.random() < 0.1 else ""
            made = self.tag(f"macro {macro}({signature})") + self.body(depth - 1) + extra + self.tag("endmacro")
            after = self.tag(f"set {name} = 'later'") if rng.random() < 0.3 else ""
            if "caller" in extra and rng.random() < 0.7:
                return before + made + after + self.tag(f"call{rng.choice(['', '(y)', '(y=2)', '(y, w=y)'])} {macro}({rng.choice(['', '1', 'a=2', 's'])})") + rng.choice(["c", "{{ y }}", "{{ n }}{{ a }}", "{{ w }}"]) + self.tag("endcall")
            return before + made + after + f"{{{{ {call} }}}}"
        if kind == 13:
            return "{% set ns = namespace(v=0, l=[]) %}" + self.tag("for m in messages") + self.tag(f"set ns.v = {rng.choice(['ns.v + 1', 'm.role', 'loop.index0', 'ns.l', self.value()])}") + self.body(depth - 1) + self.tag("endfor") + "{{ ns.v }}"
        if kind == 14:
            return rng.choice(["{# c #}", "{#- c -#}", "{% raw %}{{ x }} {% endraw %}", "{%- raw -%} {# y #} {%- endraw -%}", "{# {{ x }} {% if %} #}\n", "\n  {# c #}\n", "{% raw %}\n a\n{% endraw %}\n", "{#+ c +#}\n", "  {%+ raw %} x {% endraw +%}\n", "{#\n#}\n x"])
        if kind == 15:
            return self.tag("for x in tree recursive") + rng.choice(["", "{{ loop.depth }}", "{{ loop.index }}/{{ loop.length }}"]) + "{{ x.n }}" + rng.choice(["{{ loop(x.kids) }}", "{% if x.kids %}({{ loop(x.kids) | trim }}){% endif %}"]) + self.body(0) + self.tag("endfor")
        return self.tag("generation") + self.body(depth - 1) + self.tag("endgeneration")


LOOP = ["index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "previtem", "nextitem", "cycle('a', 'b')", "changed(m)", "changed(x)", "cycle()",
        "previtem is defined", "nextitem.role", "nothing", "changed()"]


def template(rng):
    composer = Composer(rng)
    return "".join(composer.body(3) for _ in range(rng.randint(1, 3))) + rng.choice(["", "\n", "\n\n", " "])


def cases(rng, share, expressions, templates):
    """Sources of all kinds, with what Python makes of them."""
    sources = []
    for name, every in kinds().items():
        drawn = every if len(every) <= share or name in WHOLE else rng.sample(every, share)
        sources += ["{{ " + source + " }}" for source in drawn]
    sources += STATEMENTS
    sources += ["{{ " + expression(rng) + " }}" for _ in range(expressions)]
    sources += [template(rng) for _ in range(templates)]
    made = [case(source, CONTEXT) for source in sources if "lipsum" not in source]
    # What is printed with its place in memory differs from run to run.
    return [one for one in made if not re.search(r" at 0x[0-9a-f]+", one.get("expected", ""))]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where templates.jsonl is written; the file with --fixture")
    parser.add_argument("--fixture", action="store_true", help="write the fixture of the tests that always run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=int, default=400, help="combinations of each kind at most")
    parser.add_argument("--expressions", type=int, default=4000, help="expressions composed at random")
    parser.add_argument("--templates", type=int, default=3000, help="templates composed at random")
    args = parser.parse_args()
    if args.fixture:
        made = cases(random.Random(args.seed), 12, 60, 150)
        shared = {"context": CONTEXT, "cases": [{k: v for k, v in one.items() if k != "context"} for one in made]}
        args.folder.write_text(json.dumps(shared, indent=1, ensure_ascii=False) + "\n")
    else:
        made = cases(random.Random(args.seed), args.share, args.expressions, args.templates)
        args.folder.mkdir(parents=True, exist_ok=True)
        with open(args.folder / "templates.jsonl", "w") as out:
            out.writelines(json.dumps(one) + "\n" for one in made)
    rendered = sum("expected" in one for one in made)
    print(f"{rendered} rendered, {len(made) - rendered} refused by Python")


if __name__ == "__main__":
    main()
