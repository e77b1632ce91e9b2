//! Tests the server with published tools and schemas, which `tools/schemas` downloads into the folder that
//! `INTERBED_SCHEMAS` names. If the variable is not set, the tests say so and pass. The answers that the tests write
//! are validated by `tools/schemas/validate.py`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use interbed_engine::{
    Constraint, GrammarError, GrammarSource, Vocabulary, checked_schema, json_value, quoted, vocabulary_of,
};
use interbed_grammar::Standing;
use interbed_model::tokenizer::Tokenizer;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::harmony::{self, HarmonyParser};
use crate::tool_calls::{FAMILIES, Family, Function, Part, ToolParser, told_of};

/// The maximum number of tokens of an answer.
const TOKENS_MAX: usize = 2048;
/// The maximum number of problems that are shown.
const PROBLEMS_SHOWN: usize = 60;

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("INTERBED_SCHEMAS").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: INTERBED_SCHEMAS names no folder; tools/schemas/README.md says how to fill one");
    }
    folder
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| json_value(line).expect("a line of JSON")).collect()
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_dir(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller")).expect("a tokenizer")
}

fn function(described: &Value) -> Function {
    let name = described["name"].as_str().expect("a name").to_owned();
    Function { name, parameters: described["parameters"].clone() }
}

/// Samples an answer from random logits, in which closing tokens are more likely. Returns the answer, and whether it
/// ended by itself. `closings` are texts that close non-JSON parts.
fn answer(
    vocabulary: &Vocabulary,
    mut state: Constraint,
    seed: u64,
    closings: &[&str],
) -> Result<(String, bool), GrammarError> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut text: Vec<u8> = Vec::new();
    let mut logits = vec![0.0f32; vocabulary.num_tokens()];
    let closes: Vec<bool> = (0..logits.len() as u32)
        .map(|token| vocabulary.text(token).iter().all(|byte| b"\"}],:".contains(byte)))
        .collect();
    for _ in 0..TOKENS_MAX {
        logits.iter_mut().zip(&closes).for_each(|(logit, &closes)| *logit = random.f32() + f32::from(closes) * 0.4);
        for closing in closings.iter().map(|closing| closing.as_bytes()) {
            let begun = (0..closing.len()).rev().find(|&begun| text.ends_with(&closing[..begun])).unwrap_or(0);
            // A closing text has several tokens: once begun, it is likely to be continued.
            let bonus = if begun > 0 { 1.2 } else { 0.4 };
            for (token, logit) in logits.iter_mut().enumerate() {
                let piece = vocabulary.text(token as u32);
                *logit += if !piece.is_empty() && closing[begun..].starts_with(piece) { bonus } else { 0.0 };
            }
        }
        state.mask()?.into_iter().for_each(|mask| mask.apply(&mut logits));
        let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(token, _)| token);
        let token = best as u32;
        assert!(logits[best].is_finite(), "nothing may come after {:?}", String::from_utf8_lossy(&text));
        if state.advance(token)? == Standing::Complete {
            if !vocabulary.text(token).is_empty() {
                text.extend_from_slice(vocabulary.text(token));
            }
            return Ok((String::from_utf8(text).expect("whole characters"), true));
        }
        text.extend_from_slice(vocabulary.text(token));
    }
    Ok((String::from_utf8_lossy(&text).into_owned(), false))
}

/// Replaces line ends by spaces. JSON strings contain no raw line ends, so these are white space.
fn on_one_line(json: &RawValue) -> String {
    json.get().replace(['\n', '\r'], " ")
}

/// Runs `work` for each of `items`, on all cores and with large enough stacks. Fails if `work` reports problems.
fn on_all_cores<T: Sync>(items: &[T], work: impl Fn(usize, &T, &dyn Fn(String)) + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let problems = Mutex::new(Vec::new());
    let fail = |problem: String| problems.lock().unwrap().push(problem);
    let go_on = || {
        loop {
            let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(item) = items.get(index) else { return };
            work(index, item, &fail);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let thread = std::thread::Builder::new().stack_size(Vocabulary::STACK_BYTES);
            thread.spawn_scoped(scope, go_on).expect("a thread");
        }
    });
    let mut problems = problems.into_inner().unwrap();
    problems.sort();
    let shown = problems.iter().take(PROBLEMS_SHOWN).map(|problem| format!("{problem:.600}\n")).collect::<String>();
    assert!(problems.is_empty(), "{} problems:\n{shown}", problems.len());
}

/// A syntax of tool calls.
#[derive(Clone, Copy)]
enum Way {
    Family(&'static Family),
    Harmony,
}

fn ways() -> impl Iterator<Item = Way> {
    FAMILIES.into_iter().map(Way::Family).chain([Way::Harmony])
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Family(family) => family.name,
            Self::Harmony => harmony::NAME,
        }
    }

    fn checked(self, function: &Function) -> Result<Function, GrammarError> {
        let parameters = match self {
            Self::Family(family) => family.checked(&function.parameters)?,
            Self::Harmony => checked_schema(&function.parameters)?,
        };
        Ok(Function { parameters, ..function.clone() })
    }

    /// Returns the grammar of an answer that is a tool call, for a tokenizer without tokens for markers.
    fn grammar(self, functions: &[Function]) -> String {
        match self {
            Self::Family(family) => family.answer_grammar(functions, false, None, &|text| quoted(text)),
            Self::Harmony => harmony::answer_grammar(functions, None, quoted, false),
        }
    }

    /// Texts that close non-JSON parts of a call.
    fn closings(self) -> &'static [&'static str] {
        match self.name() {
            "qwen3-coder" => &["</parameter>"],
            "glm" => &["</arg_value>"],
            "gemma4" => &["<|\"|>"],
            harmony::NAME => &["<|end|>"],
            _ => &[],
        }
    }

    fn written(self, calls: &[Value]) -> String {
        let one = |call: &Value| {
            let name = call["name"].as_str().expect("a name");
            let arguments: &Map<String, Value> = call["arguments"].as_object().expect("arguments");
            match self {
                Self::Family(family) => family.written(name, arguments),
                Self::Harmony => format!(
                    "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{}<|call|>",
                    call["arguments"]
                ),
            }
        };
        let between = if matches!(self, Self::Harmony) { "<|start|>assistant" } else { "\n" };
        calls.iter().map(one).collect::<Vec<_>>().join(between)
    }

    /// Returns the parts of a text that comes in these pieces, without thinking.
    fn read(self, functions: &[Function], pieces: &[&str]) -> Vec<Part> {
        let mut parts: Vec<Part> = match self {
            Self::Family(family) => {
                let mut parser = ToolParser::new(family, functions.to_vec());
                let parts: Vec<Part> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
                parts.into_iter().chain(parser.finish()).collect()
            }
            Self::Harmony => {
                let names = functions.iter().map(|function| function.name.clone()).collect();
                let mut parser = HarmonyParser::new(names, false);
                let parts: Vec<Part> = pieces.iter().flat_map(|piece| parser.push(piece, false)).collect();
                parts.into_iter().chain(parser.push("", true)).collect()
            }
        };
        parts.retain(|part| !matches!(part, Part::Reasoning(_)));
        parts
    }
}

/// Uses every function as the one tool of a request that requires a call: complete calls are of that function, and
/// their arguments are written to a file.
#[test]
fn random_calls_of_published_functions() {
    let Some(folder) = folder() else { return };
    let described = lines(&folder.join("functions.jsonl"));
    let tokenizer = tokenizer();
    let eos: Vec<u32> = tokenizer.eos_id().into_iter().collect();
    let vocabulary = vocabulary_of(&tokenizer, &eos).expect("a vocabulary");
    let answers = Mutex::new(File::create(folder.join("calls_answered.jsonl")).expect("a file"));
    let counted = Mutex::new(std::collections::BTreeMap::<(&str, &str), usize>::new());
    let count = |way: Way, what| *counted.lock().unwrap().entry((way.name(), what)).or_default() += 1;
    on_all_cores(&described, |index, one, fail| {
        let function = function(one);
        for way in ways() {
            let checked = match way.checked(&function) {
                Ok(checked) => checked,
                Err(error) => return fail(format!("{} {}: {error}", way.name(), function.name)),
            };
            let source = GrammarSource::Lark(way.grammar(std::slice::from_ref(&checked)));
            let fresh = match vocabulary.compile(&source) {
                Ok(fresh) => fresh,
                Err(error) => {
                    // A few schemas allow no value at all, such as an array that has to be one of some strings.
                    if !error.to_string().contains("nsatisfiable") {
                        fail(format!("{} {}: {error}", way.name(), function.name));
                    }
                    count(way, "refused");
                    continue;
                }
            };
            let (text, ended) = answer(&vocabulary, fresh, index as u64, way.closings()).expect("an answer");
            let parts = way.read(std::slice::from_ref(&function), &[&text]);
            if !ended {
                count(way, "cut off");
                continue;
            }
            count(way, "ended");
            let told = told_of(&parts);
            let arguments = match (&parts[..], &told[..]) {
                ([Part::Call(name), Part::Arguments(_)], [call]) if *name == function.name => call.strip_prefix(name),
                _ => None,
            };
            // Kept as it is written: numbers may be larger than this library can represent.
            let Some(arguments) = arguments.and_then(|json| serde_json::from_str::<&RawValue>(json).ok()) else {
                fail(format!("{} {}: {text:?} is {parts:?}", way.name(), function.name));
                continue;
            };
            let arguments = on_one_line(arguments);
            let place = Value::from(format!("{} {}", way.name(), function.name));
            let line = format!(r#"{{"place":{place},"schema":{},"answer":{arguments}}}"#, function.parameters);
            writeln!(answers.lock().unwrap(), "{line}").expect("a line");
        }
    });
    let counted = counted.into_inner().unwrap();
    eprintln!("{counted:?}");
    for way in ways() {
        let ended = counted.get(&(way.name(), "ended")).copied().unwrap_or(0);
        assert!(ended * 100 >= described.len() * 95, "{}: {ended} of {} ended", way.name(), described.len());
    }
}

/// Writes calls in the syntax of all families, and reads them whole and split at each byte.
#[test]
fn published_calls_are_read_back() {
    let Some(folder) = folder() else { return };
    let asked = lines(&folder.join("calls.jsonl"));
    let counted = Mutex::new(0usize);
    on_all_cores(&asked, |_, asked, fail| {
        let functions: Vec<Function> = asked["functions"].as_array().expect("functions").iter().map(function).collect();
        let called = asked["calls"].as_array().expect("calls");
        for way in ways() {
            let text = way.written(called);
            let expected: Vec<String> = called
                .iter()
                .map(|call| {
                    let name = call["name"].as_str().expect("a name").to_owned();
                    name + &call["arguments"].to_string()
                })
                .collect();
            let whole = told_of(&way.read(&functions, &[&text]));
            if whole != expected {
                fail(format!("{}: {text:?} is {whole:?}, not {expected:?}", way.name()));
                continue;
            }
            for at in (1..text.len()).filter(|&at| text.is_char_boundary(at)) {
                let (one, other) = text.split_at(at);
                if told_of(&way.read(&functions, &[one, other])) != expected {
                    fail(format!("{}: cut at {at}: {text:?}", way.name()));
                }
            }
            *counted.lock().unwrap() += called.len();
        }
    });
    eprintln!("{} calls", counted.into_inner().unwrap());
}

/// Checks that every schema is refused by name and place, or that its complete answers are written to a file.
#[test]
fn random_answers_to_published_schemas() {
    let Some(folder) = folder() else { return };
    let schemas = lines(&folder.join("schemas.jsonl"));
    let tokenizer = tokenizer();
    let eos: Vec<u32> = tokenizer.eos_id().into_iter().collect();
    let vocabulary = vocabulary_of(&tokenizer, &eos).expect("a vocabulary");
    let answers = Mutex::new(File::create(folder.join("schemas_answered.jsonl")).expect("a file"));
    let outcomes = Mutex::new(File::create(folder.join("schemas_outcomes.jsonl")).expect("a file"));
    let tell = |place: &Value, what: &str, detail: String| {
        writeln!(outcomes.lock().unwrap(), "{}", json!({"place": place, "what": what, "detail": detail}))
            .expect("a line");
    };
    on_all_cores(&schemas, |index, one, _| {
        let (place, schema) = (&one["place"], &one["schema"]);
        let fresh = match vocabulary.compile(&GrammarSource::JsonSchema(schema.clone())) {
            Ok(fresh) => fresh,
            Err(error) => {
                let what = match &error {
                    GrammarError::Schema { .. } => "refused by place",
                    GrammarError::TooLarge { .. } => "too large",
                    _ => "refused by the library",
                };
                return tell(place, what, error.to_string());
            }
        };
        for walk in 0..4 {
            let seed = (index * 4 + walk) as u64;
            match answer(&vocabulary, fresh.clone(), seed, &[]) {
                Err(error) => tell(place, "too complex", error.to_string()),
                Ok((_, false)) => tell(place, "cut off", String::new()),
                Ok((text, true)) => {
                    let value: &RawValue = serde_json::from_str(&text).expect("JSON");
                    let value = on_one_line(value);
                    let line = format!(r#"{{"place":{place},"schema":{schema},"answer":{value}}}"#);
                    writeln!(answers.lock().unwrap(), "{line}").expect("a line");
                    tell(place, "ended", String::new());
                }
            }
        }
    });
}
