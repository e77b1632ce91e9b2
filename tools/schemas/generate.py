#!/usr/bin/env python3
"""Writes schemas whose keywords are combined at random: generate.py FOLDER [COUNT [SEED]]. Written is generated.jsonl
(place, schema). Bounds have both signs and many sizes, numbers are written in many ways, and schemas nest. Most have
values; what a schema asks for may also be nothing, or more than can be enforced."""

import json
import pathlib
import random
import sys

folder = pathlib.Path(sys.argv[1])
count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
dice = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
NAMES = ["name", "age", "tags", "is ok", "x-1", "é", 'q"', "a/b", "b\\c", "kind", "id", ""]
PATTERNS = ["^x-", "^[a-c]{2,4}(-[0-9]+)?$", "[0-9]$", "^\\d{3}$", "o", "^(yes|no)$", "^[^/]+$", "a|b$"]
# Those of names that properties list, too: they may leave no name to others.
NAME_PATTERNS = [*PATTERNS, "^name$", "^x-1$", "^(age|id|kind)$", "^$", "^.*$", '^q"$', "^.{1,9}$"]
FORMATS = ["date", "date-time", "time", "ipv4", "ipv6", "uuid", "email", "hostname", "uri", "duration"]


class Written(float):
    """A number that stands in JSON as it was written."""

    def __new__(cls, text):
        self = super().__new__(cls, text)
        self.text = text
        return self

    def __repr__(self):
        return self.text


def chance(share):
    return dice.random() < share


def whole():
    size = dice.choice([3, 10, 100, 10_000, 10**9, 2**53, 10**18])
    return dice.randint(-size, size)


def number():
    """A number, in one of its forms."""
    way = dice.randrange(10)
    if way < 4:
        return whole()
    if way < 7:
        return round(dice.uniform(-1, 1) * dice.choice([1, 10, 1000]), dice.randrange(1, 5))
    if way < 8:
        return Written(f"{dice.randint(-9, 9)}.{dice.randint(0, 99):02}")
    if way < 9:
        return Written(f"{dice.randint(-9, 9)}{dice.choice('eE')}{dice.choice(['', '+', '-'])}{dice.randint(0, 20)}")
    return Written(f"{dice.randint(-9, 9)}.{dice.randint(0, 10**25)}")


def numeric():
    schema = {"type": dice.choice(["number", "integer"])} if chance(0.9) else {}
    low = number()
    near = [0.25, 0.5, 1, 2, 10, 1000, 1e-6, 10**12]
    high = low + dice.choice(near) if chance(0.8) else number()
    if chance(0.7):
        schema[dice.choice(["minimum", "exclusiveMinimum"])] = low
    if chance(0.7):
        schema[dice.choice(["maximum", "exclusiveMaximum"])] = high
    if chance(0.1):
        schema["exclusiveMinimum"] = number()
    if chance(0.1):
        schema["maximum"] = number()
    if chance(0.25):
        schema["multipleOf"] = dice.choice([1, 2, 3, 7, 10, 100, 0.5, 0.25, 2.5, 0.1, 0.01, 1.5, 0.125, 997, 1000, Written("2.0"), 12345])
    return schema


def text():
    schema = {"type": "string"} if chance(0.9) else {}
    if chance(0.4):
        schema["minLength"] = dice.randrange(4)
    if chance(0.6):
        schema["maxLength"] = dice.randrange(1, 9)
    if chance(0.25):
        schema["pattern"] = dice.choice(PATTERNS)
        schema.pop("maxLength", None)
    elif chance(0.2):
        return {"type": "string", "format": dice.choice(FORMATS)}
    return schema


def value(depth):
    way = dice.randrange(6 if depth == 0 else 8)
    if way < 2:
        return number()
    if way < 3:
        return whole()
    if way < 6:
        return dice.choice([None, True, False, "", "a", "gr\u00fcn", 'q"\\\n', "0", "x-1", "\u007f", "😀"])
    if way < 7:
        return [value(depth - 1) for _ in range(dice.randrange(3))]
    return {dice.choice(NAMES): value(depth - 1) for _ in range(dice.randrange(3))}


def literal():
    if chance(0.3):
        return {"const": value(2)}
    values = [value(1) for _ in range(dice.randrange(1, 5))]
    # As the standard wants it, each once; true is not 1.
    schema = {"enum": [one for at, one in enumerate(values) if not any(repr(one) == repr(two) for two in values[:at])]}
    if chance(0.2):
        schema["type"] = dice.choice(["number", "integer", "string", ["null", "string"]])
    if chance(0.1):
        schema["minimum"] = number()
    return schema


def array(depth):
    schema = {"type": "array"} if chance(0.9) else {}
    if chance(0.4):
        schema["prefixItems"] = [schema_of(depth - 1) for _ in range(dice.randrange(1, 4))]
    if chance(0.7):
        schema["items"] = schema_of(depth - 1) if chance(0.8) else dice.choice([True, False])
    if chance(0.5):
        schema["minItems"] = dice.randrange(4)
    if chance(0.7):
        schema["maxItems"] = dice.randrange(5)
    return schema


def object_(depth):
    schema = {"type": "object"} if chance(0.9) else {}
    names = dice.sample(NAMES, dice.randrange(5))
    if names or chance(0.5):
        schema["properties"] = {name: schema_of(depth - 1) for name in names}
    if chance(0.5):
        schema["required"] = [name for name in names if chance(0.5)] + ([dice.choice(NAMES)] if chance(0.1) else [])
        schema["required"] = list(dict.fromkeys(schema["required"]))
    if chance(0.2):
        schema["patternProperties"] = {pattern: schema_of(depth - 1) for pattern in dice.sample(NAME_PATTERNS, dice.randrange(1, 3))}
    if chance(0.6):
        schema["additionalProperties"] = dice.choice([True, False, False, False]) if chance(0.7) else schema_of(depth - 1)
    if chance(0.25):
        schema["minProperties"] = dice.randrange(4)
    if chance(0.25):
        schema["maxProperties"] = dice.randrange(5)
    return schema


def together(depth):
    word = dice.choice(["allOf", "anyOf", "oneOf", "anyOf"])
    if word == "oneOf" and chance(0.6):
        kinds = dice.sample(["a", "b", "c"], dice.randrange(1, 4))
        one = lambda kind: {"type": "object", "required": ["kind"],
                            "properties": {"kind": {"const": kind}, "v": schema_of(depth - 1)}}
        return {"oneOf": [one(kind) for kind in kinds]}
    if word == "allOf" and chance(0.7):
        of = dice.choice([numeric, text, lambda: object_(depth - 1), lambda: array(depth - 1)])
        schema = {"allOf": [of() for _ in range(dice.randrange(1, 4))]}
    else:
        schema = {word: [schema_of(depth - 1) for _ in range(dice.randrange(1, 4))]}
    if chance(0.3):
        schema.update(dice.choice([numeric, text, literal, lambda: object_(depth - 1)])())
    return schema


def narrow():
    """A schema that says a little."""
    way = dice.randrange(9)
    if way < 3:
        return literal()
    if way < 5:
        kinds = ["null", "boolean", "integer", "number", "string", "array", "object"]
        return {"type": dice.choice(kinds) if chance(0.7) else dice.sample(kinds, 2)}
    if way < 6:
        return {"required": dice.sample(NAMES, dice.randrange(1, 3))}
    if way < 7:
        return dice.choice([{"minLength": 2}, {"maxLength": 3}, {"pattern": dice.choice(PATTERNS)}, {"maxItems": 1}])
    if way < 8:
        return dice.choice([{"minimum": number()}, {"exclusiveMaximum": number()}, {"maxProperties": 1}])
    schema = {"properties": {name: narrow() for name in dice.sample(NAMES, dice.randrange(1, 3))}}
    if chance(0.5):
        schema["required"] = list(schema["properties"])
    return schema


def without(depth):
    """A schema that excludes values, or says something of some only."""
    schema = dice.choice([numeric, text, literal, lambda: object_(depth - 1), lambda: array(depth - 1), narrow])()
    way = dice.randrange(8)
    if way < 2:
        schema["not"] = narrow() if chance(0.8) else schema_of(depth - 1)
    elif way < 4:
        schema["if"] = narrow()
        for keyword in dice.sample(["then", "else"], dice.randrange(1, 3)):
            schema[keyword] = narrow() if chance(0.6) else schema_of(depth - 1)
    elif way < 6:
        schema["oneOf"] = [narrow() if chance(0.7) else schema_of(depth - 1) for _ in range(dice.randrange(2, 4))]
    elif way < 7:
        names = dice.sample(NAMES, 3)
        schema["dependentRequired"] = {names[0]: names[1:2], names[1]: names[1:]}
        if chance(0.5):
            schema["dependentSchemas"] = {names[2]: narrow()}
    elif chance(0.5):
        schema = {"type": "array", "items": literal(), "uniqueItems": True, "minItems": dice.randrange(3)}
        if chance(0.5):
            schema["maxItems"] = dice.randrange(1, 5)
    elif chance(0.5):
        schema = {"type": "array", "contains": narrow(), "items": schema_of(0)}
    else:
        schema = object_(depth - 1)
        schema["propertyNames"] = dice.choice([{"maxLength": 4}, {"pattern": "^[a-z]"}, {"enum": NAMES[:3]},
                                               {"const": "kind"}, {"minLength": 1, "pattern": "[^q]$"}])
    return schema


def schema_of(depth):
    way = dice.randrange(7 if depth <= 0 else 17)
    if way > 13:
        return without(depth)
    if way < 3:
        return numeric()
    if way < 4:
        return text()
    if way < 6:
        return literal()
    if way < 7:
        return dice.choice([{"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}, {}, True, {"$ref": "#/$defs/leaf"}])
    if way < 8:
        return array(depth)
    if way < 12:
        return object_(depth)
    if way < 13:
        return together(depth)
    return {"$ref": dice.choice(["#/$defs/leaf", "#/$defs/tree"])}


def whole_schema():
    schema = schema_of(dice.randrange(4))
    if schema is True:
        schema = {}
    tree = {"type": "object", "properties": {"v": schema_of(0), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]}},
            "required": ["v"], "additionalProperties": False}
    return {**schema, "$defs": {"leaf": schema_of(0), "tree": tree}}


folder.mkdir(parents=True, exist_ok=True)
path = folder / "generated.jsonl"
with path.open("w") as out:
    for index in range(count):
        # Python's encoder writes floats by `float.__repr__`, so numbers pass through texts that stand for them.
        held = []

        def hold(part):
            if isinstance(part, Written):
                held.append(part.text)
                return f"\u0001{len(held) - 1}\u0001"
            if isinstance(part, dict):
                return {key: hold(one) for key, one in part.items()}
            if isinstance(part, list):
                return [hold(one) for one in part]
            return part

        line = json.dumps({"place": f"generated {index}", "schema": hold(whole_schema())}, ensure_ascii=False)
        for at, number_text in enumerate(held):
            line = line.replace(f'"\\u0001{at}\\u0001"', number_text, 1)
        out.write(line + "\n")
print(f"{path}: {count}")
