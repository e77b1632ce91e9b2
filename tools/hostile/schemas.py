"""300 schemas and grammars that are small to send, and would take long or much to compile or to follow.

Each is the fields of a request: `hostile(seed)` is a list of (kind, fields). The same seed makes the same list.
"""

import random

COUNT = 300


def of_schema(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def one(name, schema):
    return {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}


def text(**keywords):
    return {"type": "string", **keywords}


def patterns(rng):
    """Patterns for one text, which multiply."""
    piece = rng.choice(["a{%d,}", "[a-m]{%d,}", "(a|b){%d}c", "a.{%d}b", "[^x]{%d,}y", "(ab?){%d,}"])
    low, count = rng.randrange(4), rng.randrange(3, 40)
    many = [text(pattern=piece % (low + index)) for index in range(count)]
    return of_schema(rng.choice([{"allOf": many}, one("x", {"allOf": many}), {"type": "array", "items": {"allOf": many}}]))


def references(rng):
    """The same, each behind a reference to the next."""
    count = rng.randrange(5, 30)
    defs = {f"d{i}": text(pattern="a{%d,}" % i, **{"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    defs[f"d{count}"] = text()
    return of_schema({"$ref": "#/$defs/d0", "$defs": defs})


def formats(rng):
    names = ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"]
    many = [text(format=rng.choice(names), minLength=rng.randrange(20)) for _ in range(rng.randrange(2, 14))]
    return of_schema(one("x", {"allOf": many + [text(pattern="[a-z0-9:.-]{%d,}" % rng.randrange(30))]}))


def lengths(rng):
    low = rng.choice([1000, 10**5, 10**7, 10**9])
    pattern = rng.choice(["^(a|ab|b)*$", "^[a-z]*(x[a-z]*){20}$", "(a.{30}b)|(b.{31}a)", "^(.{0,50}a){20}$"])
    return of_schema(one("x", text(minLength=low, maxLength=low * rng.randrange(1, 9), pattern=pattern)))


def multiples(rng):
    many = [{"type": "integer", "multipleOf": rng.randrange(2, 10**6)} for _ in range(rng.randrange(1, 7))]
    bounds = {"type": "integer", "minimum": -rng.randrange(10**9), "maximum": rng.randrange(10**15)}
    return of_schema(one("x", {"allOf": many + [bounds]}))


def fractions(rng):
    number = {"type": "number", "multipleOf": 10 ** -rng.randrange(1, 9) * rng.randrange(1, 10**4)}
    return of_schema(one("x", {**number, "minimum": rng.random(), "maximum": 1e12 * rng.random()}))


def products(rng):
    """Alternatives in each of many parts, of which all hold."""
    width, depth = rng.randrange(2, 6), rng.randrange(8, 30)
    part = lambda i: {rng.choice(["anyOf", "oneOf"]): [one(f"p{i}{j}", text()) for j in range(width)]}
    return of_schema({"allOf": [part(index) for index in range(depth)]})


def nests(rng):
    schema = text(pattern="(a|b)*a(a|b){20}")
    for level in range(rng.randrange(10, 30)):
        schema = {"anyOf": [one(f"k{level}", schema), {"type": "array", "items": schema}]}
        if len(str(schema)) > 200_000:
            break
    return of_schema(schema)


def doubling(rng):
    """Each definition has the next one several times."""
    count, width = rng.randrange(10, 40), rng.randrange(2, 5)
    refs = lambda i: {"type": "object", "properties": {f"p{j}": {"$ref": f"#/$defs/d{i + 1}"} for j in range(width)}}
    defs = {f"d{i}": {"allOf": [refs(i), refs(i)]} for i in range(count)}
    defs[f"d{count}"] = text()
    return of_schema({"$ref": "#/$defs/d0", "$defs": defs})


def items(rng):
    size = rng.choice([1000, 50_000, 10**6, 10**8])
    item = rng.choice([text(pattern="(a|b)*a(a|b){9}"), {"type": "integer"}, {"enum": list(range(200))}])
    return of_schema({"type": "array", "items": item, "minItems": size // 2, "maxItems": size})


def names(rng):
    """Names by patterns, of which each pair is compared."""
    count = rng.randrange(20, 400)
    by = {"^%s[a-z]{%d,}$" % (chr(97 + i % 26) * (1 + i // 26), i % 40): text() for i in range(count)}
    return of_schema({"type": "object", "patternProperties": by, "additionalProperties": False})


def members(rng):
    count = rng.randrange(200, 3000)
    properties = {f"{'x' * (i % 40)}{i}": text(maxLength=i) for i in range(count)}
    return of_schema({"type": "object", "properties": properties, "additionalProperties": text(pattern="x{9,}")})


def values(rng):
    return of_schema({"enum": ["".join(rng.choices("ab", k=60)) for _ in range(rng.randrange(500, 3500))]})


def regex(rng):
    small = ["(a|b)*a(a|b){%d}", "(a{0,%d}){0,%d}", "((a{1,9}){1,9}){%d}", "(.*a){%d}", "(a?){%d}a{%d}", "\\p{L}{%d}",
             "([a-z]+|[a-y]+|[a-x]+)*{%d}", "(x+x+)+y{%d}", "(.{0,%d}b){0,%d}", "[^a]{%d}|.{%d}b"]
    made = rng.choice(small)
    numbers = tuple(rng.choice([20, 200, 1000]) for _ in range(made.count("%d")))
    return {"structured_outputs": {"regex": made % numbers}}


def lark_regexes(rng):
    count = rng.randrange(3, 30)
    many = " & ".join("/(.*)a{%d,}(.*)/" % index for index in range(count))
    return {"guided_grammar": f'start: T\nT: {many}\n'}


def lark_without(rng):
    many = " & ".join("~/(.*)(a|b).{%d}c(.*)/" % index for index in range(rng.randrange(2, 20)))
    return {"guided_grammar": f'start: T\nT: /[a-d]+/ & {many}\n'}


def lark_schemas(rng):
    import json

    many = [text(pattern="a{%d,}" % index) for index in range(rng.randrange(5, 30))]
    return {"guided_grammar": "start: \"x\" j\nj: %json " + json.dumps({"allOf": many}) + "\n"}


def lark_rules(rng):
    """Rules that can be read in many ways."""
    made = rng.choice([
        'start: s\ns: s s | "a" | "b"\n',
        'start: s\ns: "a" s | s "a" | s s s | "a"\n',
        'start: e\ne: e "+" e | e "*" e | "(" e ")" | /[0-9a-f]+/ | /[0-9]+/\n',
        'start: (a | b | c)*\na: "x"* "y"?\nb: "x"? "y"*\nc: a b | b a\n',
    ])
    return {"guided_grammar": made}


def lark_doubling(rng):
    count = rng.randrange(10, 60)
    rules = "".join(f"r{i}: r{i + 1} r{i + 1} | r{i + 1} \"a\"\n" for i in range(count))
    return {"guided_grammar": f'start: r0\n{rules}r{count}: "a" | "b"\n'}


def lark_repeats(rng):
    a, b, c = (rng.choice([10, 100, 1000]) for _ in range(3))
    return {"guided_grammar": f'start: x{{{a}}}\nx: y{{0,{b}}}\ny: ("a" | "b"){{{c}}} "c"\n'}


def lark_terminals(rng):
    count = rng.randrange(50, 600)
    rules = "".join("T%d: /[a-z]{0,%d}%s.*/\n" % (i, i % 60, chr(97 + i % 26)) for i in range(count))
    return {"guided_grammar": "start: (" + " | ".join(f"T{i}" for i in range(count)) + f")*\n{rules}"}


def ebnf(rng):
    count = rng.choice([10, 100, 1000, 10**6])
    made = rng.choice([
        'root ::= ("a" | "b"){%d}' % count,
        'root ::= (("a"{0,%d}) "b"?){0,%d}' % (count, count),
        'root ::= root root | "a" | ""',
        'root ::= ([a-z]{1,9} | [a-y]{1,9} | [a-x]* "q")* "z"{%d}' % count,
        "root ::= " + " | ".join('"' + "".join(rng.choices("ab", k=30)) + '"' for _ in range(400)),
    ])
    return {"guided_grammar": made + "\n"}


def gbnf(rng):
    depth = rng.randrange(5, 40)
    rules = "".join(f"r{i} ::= r{i + 1} (r{i + 1} | r{i + 1} r{i + 1})?\n" for i in range(depth))
    return {"structured_outputs": {"grammar": f"root ::= r0*\n{rules}r{depth} ::= [a-z]+ | [a-m]* \"x\"\n"}}


def choices(rng):
    length, count = rng.choice([(60, 4000), (200, 1200), (2, 4096)])
    return {"structured_outputs": {"choice": ["".join(rng.choices("ab\"\\é", k=length)) for _ in range(count)]}}


def tools(rng):
    """Any of the others' schemas, as that of a function which has to be called."""
    made = rng.choice([patterns, formats, lengths, products, names, doubling])(rng)
    schema = one("argument", made["response_format"]["json_schema"]["schema"])
    function = {"name": "f", "strict": rng.random() < 0.5, "parameters": schema}
    choice = rng.choice(["required", "auto"])
    return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}


KINDS = [patterns, references, formats, lengths, multiples, fractions, products, nests, doubling, items, names, members,
         values, regex, lark_regexes, lark_without, lark_schemas, lark_rules, lark_doubling, lark_repeats,
         lark_terminals, ebnf, gbnf, choices, tools]


def hostile(seed=1):
    rng = random.Random(seed)
    made = []
    while len(made) < COUNT:
        kind = KINDS[len(made) % len(KINDS)]
        made.append((kind.__name__, kind(rng)))
    # The first of all: 26 patterns for one text.
    made[0] = ("patterns", of_schema({"allOf": [text(pattern="a{%d,}" % index) for index in range(26)]}))
    return made
