//! Schemas whose keywords are combined at random, which `tools/schemas/generate.py` writes into the folder that
//! `INTERBED_SCHEMAS` names. Without it, this test says so and passes. The answers that it writes down,
//! `tools/schemas/validate.py` validates.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use interbed_grammar::testing::Dice;
use interbed_grammar::{GrammarError, GrammarSource, Vocabulary, json_value};

use crate::walks::try_answer;
use crate::{PIECES, bytes_and};

/// Answers to each schema, and their longest.
const ANSWERS: u64 = 4;
const TOKENS_MAX: usize = 1500;

#[test]
fn answers_to_generated_schemas_are_written_down() {
    let Some(folder) = std::env::var_os("INTERBED_SCHEMAS").map(PathBuf::from) else {
        eprintln!("skipped: INTERBED_SCHEMAS names no folder; tools/schemas/README.md says how to fill one");
        return;
    };
    let text = fs::read_to_string(folder.join("generated.jsonl")).expect("generated.jsonl");
    let lines: Vec<&str> = text.lines().collect();
    let file = |name: &str| Mutex::new(File::create(folder.join(name)).expect("a file"));
    let (answers, outcomes) = (file("generated_answered.jsonl"), file("generated_outcomes.jsonl"));
    let next = AtomicUsize::new(0);
    let work = || {
        let vocabulary = bytes_and(&PIECES);
        while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
            let described = json_value(line).expect("a line of JSON");
            let (place, schema) = (&described["place"], &described["schema"]);
            let tell = |what: &str, detail: &str| {
                let line = serde_json::json!({"place": place, "what": what, "detail": detail});
                writeln!(outcomes.lock().unwrap(), "{line}").expect("a line");
            };
            let fresh = match vocabulary.compile(&GrammarSource::JsonSchema(schema.clone())) {
                Ok(fresh) => fresh,
                Err(error @ GrammarError::Schema { .. }) => {
                    tell("refused by place", &error.to_string());
                    continue;
                }
                Err(error) => {
                    let has_none = error.to_string().contains("nsatisfiable");
                    tell(if has_none { "no value" } else { "refused" }, &error.to_string());
                    continue;
                }
            };
            for walk in 0..ANSWERS {
                let seed =
                    place.to_string().bytes().fold(walk + 1, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
                match try_answer(&vocabulary, fresh.clone(), &mut Dice::new(seed), TOKENS_MAX) {
                    Err(error) => tell("too complex", &error.to_string()),
                    Ok(None) => tell("cut off", ""),
                    Ok(Some(text)) => {
                        tell("ended", "");
                        let text = text.replace('\n', " ");
                        let line = format!(r#"{{"place":{place},"schema":{schema},"answer":{text}}}"#);
                        writeln!(answers.lock().unwrap(), "{line}").expect("a line");
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let thread = std::thread::Builder::new().stack_size(Vocabulary::STACK_BYTES);
            thread.spawn_scoped(scope, work).expect("a thread");
        }
    });
}
