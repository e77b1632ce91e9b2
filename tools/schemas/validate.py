#!/usr/bin/env python3
"""Validates the answers that the tests wrote into FOLDER against their schemas, with a validator of its own. Usage:
validate.py FOLDER; ends with 1 if an answer is not valid, or one to a schema that was accepted could not go on."""

import collections
import json
import pathlib
import sys

import jsonschema

# Other values of "format" say what a value is for.
ENFORCED = {"date", "date-time", "duration", "email", "hostname", "idn-email", "idn-hostname", "ipv4", "ipv6", "iri",
            "iri-reference", "json-pointer", "relative-json-pointer", "time", "uri", "uri-reference", "uri-template",
            "uuid"}
FORMATS = jsonschema.FormatChecker(formats=())
FORMATS.checkers = {name: check for name, check in jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers.items()
                    if name in ENFORCED}
# Families that write texts as they are: docs/structured-output.md says what of their schemas is not kept to.
RAW_TEXTS = {"qwen3-coder", "glm", "gemma4"}
NOT_KEPT = {"format", "maxLength", "minLength", "pattern"}
folder = pathlib.Path(sys.argv[1])
wrong = 0
for name in ["calls_answered", "schemas_answered", "generated_answered", "benchmark_answered"]:
    valid = 0
    if not (folder / f"{name}.jsonl").exists():
        continue
    for line in (folder / f"{name}.jsonl").read_text().strip().split("\n"):
        line = json.loads(line)
        kind = jsonschema.validators.validator_for(line["schema"], default=jsonschema.Draft202012Validator)
        errors = list(kind(line["schema"], format_checker=FORMATS).iter_errors(line["answer"]))
        if line["place"].split()[0] in RAW_TEXTS:
            errors = [error for error in errors if error.validator not in NOT_KEPT]
        valid += not errors
        for error in errors[:1]:
            print(f"{line['place']}: {error.json_path}: {error.message[:200]} ({list(error.schema_path)[:8]})")
            wrong += 1
    print(f"{name}: {valid} valid")
for name in ["schemas", "generated", "benchmark"]:
    outcomes = collections.defaultdict(set)
    if not (folder / f"{name}_outcomes.jsonl").exists():
        continue
    for line in map(json.loads, (folder / f"{name}_outcomes.jsonl").read_text().strip().split("\n")):
        outcomes[line["what"]].add(line["place"])
        if line["what"] == "too complex":
            print(f"{line['place']}: an answer could not go on: {line['detail'][:200]}")
            wrong += 1
    print(f"{name}:", {what: len(places) for what, places in sorted(outcomes.items())})
sys.exit(wrong > 0)
