//! Tests published schemas, and those that `tools/schemas/generate.py` combines at random, from files in the folder
//! that `INTERBED_SCHEMAS` names. The test counts which schemas are refused, and why. Without the folder, the test says
//! so and passes. `tools/schemas/validate.py` validates the answers that the test writes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use interbed_grammar::testing::Dice;
use interbed_grammar::{GrammarError, GrammarSource, Vocabulary, json_value};
use serde_json::json;

use crate::walks::try_answer;
use crate::{PIECES, bytes_and};

/// The names of the files, any of which may be missing.
const FILES: [&str; 3] = ["schemas", "benchmark", "generated"];
/// The greatest length of an answer in tokens. `INTERBED_WALKS` may set the number of answers to each schema.
const TOKENS_MAX: usize = 1500;
const WALKS: u64 = 4;
/// The number of reasons, and of slowest schemas, that are shown.
const SHOWN: usize = 60;

#[test]
fn refusals_are_counted_by_reason() {
    let Some(folder) = std::env::var_os("INTERBED_SCHEMAS").map(PathBuf::from) else {
        eprintln!("skipped: INTERBED_SCHEMAS names no folder; tools/schemas/README.md says how to fill one");
        return;
    };
    let walks = std::env::var("INTERBED_WALKS").ok().and_then(|text| text.parse().ok()).unwrap_or(WALKS);
    for name in FILES {
        let Ok(text) = fs::read_to_string(folder.join(format!("{name}.jsonl"))) else { continue };
        let lines: Vec<&str> = text.lines().collect();
        let file = |what: &str| Mutex::new(File::create(folder.join(format!("{name}_{what}.jsonl"))).expect("a file"));
        let (answers, outcomes) = (file("answered"), file("outcomes"));
        let reasons = Mutex::new(BTreeMap::<String, usize>::new());
        let slowest = Mutex::new(Vec::<(Duration, String)>::new());
        // Two keywords may be to blame together, but neither of them alone.
        let whole = AtomicUsize::new(0);
        let (next, accepted, ended) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            let vocabulary = bytes_and(&PIECES);
            while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
                let described = json_value(line).expect("a line of JSON");
                let (place, schema) = (&described["place"], &described["schema"]);
                let tell = |what: &str, detail: &str| {
                    let line = json!({"place": place, "what": what, "detail": detail});
                    writeln!(outcomes.lock().unwrap(), "{line}").expect("a line");
                };
                let begun = Instant::now();
                let compiled = vocabulary.compile(&GrammarSource::JsonSchema(schema.clone()));
                slowest.lock().unwrap().push((begun.elapsed(), place.to_string()));
                let fresh = match compiled {
                    Ok(fresh) => fresh,
                    Err(error) => {
                        *reasons.lock().unwrap().entry(reason(&error)).or_default() += 1;
                        assert!(names_its_place(&error), "{place}: {error}");
                        // No keyword is to blame for a schema that is too long.
                        let told = error.to_string();
                        let is_whole = told.starts_with("# ") && !told.contains(" bytes, but at most ");
                        whole.fetch_add(usize::from(is_whole), Ordering::Relaxed);
                        tell("refused by place", &error.to_string());
                        continue;
                    }
                };
                tell("accepted", "");
                accepted.fetch_add(1, Ordering::Relaxed);
                for walk in 0..walks {
                    let seed =
                        place.to_string().bytes().fold(walk + 1, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
                    match try_answer(&vocabulary, fresh.clone(), &mut Dice::new(seed), TOKENS_MAX) {
                        Err(error) => tell("too complex", &error.to_string()),
                        Ok(None) => tell("cut off", ""),
                        Ok(Some(text)) => {
                            ended.fetch_add(1, Ordering::Relaxed);
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
        let (accepted, ended) = (accepted.into_inner(), ended.into_inner());
        let share = 100.0 * accepted as f64 / lines.len() as f64;
        let whole = whole.into_inner();
        eprintln!("{whole} refusals name no keyword");
        assert!(whole * 50 <= lines.len() - accepted, "{name}: {whole} refusals name no keyword");
        eprintln!("{name}: {accepted} of {} accepted, {share:.2} %; {ended} answers ended", lines.len());
        let mut reasons: Vec<_> = reasons.into_inner().unwrap().into_iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        reasons.iter().take(SHOWN).for_each(|(reason, count)| eprintln!("{count:6} {reason}"));
        let mut slowest = slowest.into_inner().unwrap();
        slowest.sort();
        slowest.iter().rev().take(8).for_each(|(time, place)| eprintln!("{:6} ms {place}", time.as_millis()));
    }
}

fn names_its_place(error: &GrammarError) -> bool {
    matches!(error, GrammarError::Schema { place, .. } if place.starts_with('#'))
}

/// Returns the reason of an error without what differs from schema to schema.
fn reason(error: &GrammarError) -> String {
    let (place, problem) = match error {
        GrammarError::Schema { place, problem } => (place.rsplit('/').next().unwrap_or_default(), problem.clone()),
        error => ("(no place)", error.to_string()),
    };
    let mut text = String::new();
    for one in problem.chars() {
        match one {
            '0'..='9' if text.ends_with('0') => {}
            '0'..='9' => text.push('0'),
            one => text.push(one),
        }
    }
    let place: String = if place.bytes().all(|byte| byte.is_ascii_digit()) { "0".into() } else { place.into() };
    format!("{place}: {:.150}", text)
}
