//! Headers that are nearly right, by the thousand: none may panic, hang, take memory without bounds, or be believed
//! where it lies.
//!
//! Seconds for each format: `INTERBED_FUZZ_SECONDS`, 10 without it. A failure names the seed and the file that it
//! leaves; `INTERBED_FUZZ_SEED` begins there again.

mod mutator;

use std::any::Any;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use interbed_device::peak_resident;
use interbed_weights::{Catalog, ElementType, PAGE_BYTES, Store, TensorRecord, WeightError, read_gguf, read_header};

use crate::files::{MemoryFile, safetensors};
use crate::window::rng::Rng;
use mutator::mutant;

/// Seconds for each format, by default.
const SECONDS: u64 = 10;
/// Mutants that are worth changing further, at the most.
const CORPUS_MAX: usize = 2000;
/// A header is refused or read in far less, even beside other tests.
const SLOW: Duration = Duration::from_secs(5);
/// Memory that the process may have taken in the end; files are below a megabyte, and other tests run beside.
const MEMORY_MAX: u64 = 2 << 30;

/// Gives `judge` mutants of `seeds` until the time is up. `judge` returns a file's answer: the message if the file is
/// refused, or nothing. Mutants with an answer that is new are changed further.
fn fuzz(
    name: &str,
    seeds: Vec<Vec<u8>>,
    head: usize,
    mend: &dyn Fn(&mut Vec<u8>, &mut Rng),
    judge: &dyn Fn(&[u8]) -> Option<String>,
) {
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = Duration::from_secs(variable("INTERBED_FUZZ_SECONDS").unwrap_or(SECONDS));
    let seed = variable("INTERBED_FUZZ_SEED").unwrap_or_else(|| std::process::id().into());
    for seed in &seeds {
        assert_eq!(judge(seed), None, "{name}: a good file is refused");
    }
    let (mut corpus, mut rng, mut answers) = (seeds.clone(), Rng(seed), HashSet::new());
    let (mut tried, mut accepted) = (0u64, 0u64);
    let begin = Instant::now();
    while begin.elapsed() < time {
        // A file that has been changed often is seldom accepted.
        let from = if rng.once_in(2) { &seeds } else { &corpus };
        let mut bytes = mutant(from, head, &mut rng);
        mend(&mut bytes, &mut rng);
        let answer = catch_unwind(AssertUnwindSafe(|| {
            let timed = || {
                let started = Instant::now();
                (judge(&bytes), started.elapsed())
            };
            // A busy machine may stop us for seconds, but not three times at the same file.
            let (answer, took) = timed();
            let is_slow = took > SLOW && (0..2).all(|_| timed().1 > SLOW);
            (answer, is_slow)
        }));
        let fail = |what: &str| {
            let path = std::env::temp_dir().join(format!("interbed-fuzz-{name}-{seed}"));
            let kept = std::fs::write(&path, &bytes).map_or("not kept".into(), |()| path.display().to_string());
            panic!("{name}, seed {seed}, file {tried} ({kept}): {what}");
        };
        match answer {
            Err(panic) => fail(&format!("a panic: {}", text_of(panic.as_ref()))),
            Ok((_, true)) => fail(&format!("it takes more than {SLOW:?}")),
            Ok((answer, false)) => {
                accepted += u64::from(answer.is_none());
                let is_new = answers.insert((answer, bytes.len().checked_ilog2()));
                if is_new && corpus.len() < CORPUS_MAX {
                    corpus.push(bytes);
                }
            }
        }
        tried += 1;
    }
    eprintln!(
        "{name}: {tried} files from seed {seed}, {accepted} of them accepted, {} kinds of answers",
        answers.len()
    );
    // A loop that tries nothing, or a reader that refuses or takes everything, tests nothing.
    assert!(tried > 100 && accepted > 0 && accepted < tried && answers.len() > 5, "{name}: {tried}, {accepted}");
    assert!(peak_resident() < MEMORY_MAX, "{name}: {} bytes of memory were taken", peak_resident());
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("of something else")
}

/// Checks what every accepted header promises: tensors are in order, each within the file and of the bytes that its
/// shape and type make.
fn check_promises(records: &[TensorRecord], file_bytes: u64) {
    let mut end = 0;
    for record in records {
        let TensorRecord { element_type, shape, offset, bytes, .. } = record;
        assert!(*offset >= end, "{record:?} begins before {end}");
        end = offset.checked_add(*bytes).expect("ends can be counted");
        assert!(end <= file_bytes, "{record:?} ends behind {file_bytes}");
        if let ElementType::Known(dtype) = element_type {
            let (&cols, outer) = shape.split_last().unwrap_or((&1, &[]));
            let rows = outer.iter().try_fold(1u64, |rows, &dim| rows.checked_mul(dim as u64));
            let made = dtype.row_bytes(cols).zip(rows).and_then(|(row, rows)| (row as u64).checked_mul(rows));
            assert_eq!(made, Some(*bytes), "{record:?}");
        }
    }
}

fn refusal<T>(outcome: Result<T, WeightError>, then: impl FnOnce(T)) -> Option<String> {
    match outcome {
        Ok(read) => {
            then(read);
            None
        }
        Err(error) => Some(kind_of(&error)),
    }
}

/// Returns the kind of problem. Messages of the JSON parser are told apart by their first words; numbers and names in
/// them do not matter.
fn kind_of(error: &WeightError) -> String {
    let text = format!("{error:?}");
    let problem = text.rsplit_once("problem: ").map_or(text.as_str(), |(_, problem)| problem);
    let letters =
        |text: &str, most: usize| text.chars().take(most).filter(char::is_ascii_alphabetic).collect::<String>();
    let name = letters(problem.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default(), 40);
    let words = problem.split_once("message: ").map_or(String::new(), |(_, message)| letters(message, 16));
    format!("{name} {words}")
}

fn fixtures(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|found| found == ending)).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no {ending} in {}", folder.display());
    paths
}

fn model_fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../interbed-model/tests/fixtures")
}

/// Returns the good files of a fuzz run, which are those that are small enough to be copied often.
fn read_small(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    let files = paths.iter().map(|path| std::fs::read(path).expect("the file can be read"));
    files.filter(|bytes| bytes.len() < 200_000).collect()
}

#[test]
fn safetensors_headers() {
    let two = r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]}}"#;
    let odd = r#"{"__metadata__":{"format":"pt"},"e":{"dtype":"F16","shape":[3,0],"data_offsets":[0,0]},
        "i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
    let mut seeds = vec![safetensors(two, 30), safetensors(odd, 8), safetensors("{}", 0)];
    let folders = ["qwen3", "llama3_bf16"].map(|name| model_fixtures().join(name).join("model.safetensors"));
    seeds.extend(read_small(&folders));
    // Half of the mutants have a length of the header that fits, or none would come far.
    let mend = |bytes: &mut Vec<u8>, rng: &mut Rng| {
        if let Some(end) = bytes.iter().rposition(|&byte| byte == b'}')
            && rng.once_in(2)
            && end > 8
        {
            let length = (end + 1 - 8) as u64;
            bytes[..8].copy_from_slice(&length.to_le_bytes());
        }
    };
    fuzz("safetensors", seeds, 700, &mend, &|bytes| {
        let file = MemoryFile::new(bytes.to_vec());
        refusal(read_header(&file), |records| {
            check_promises(&records, bytes.len() as u64);
            let catalog = Catalog::from_files(vec![MemoryFile::new(bytes.to_vec()).shared()]);
            assert_eq!(catalog.expect("names are distinct").tensors().len(), records.len());
        })
    });
}

#[test]
fn gguf_headers() {
    let seeds = read_small(&fixtures(&model_fixtures().join("gguf"), "gguf"));
    assert!(seeds.len() > 5);
    fuzz("gguf", seeds, 3000, &|_, _| {}, &|bytes| {
        refusal(read_gguf(&MemoryFile::new(bytes.to_vec())), |header| {
            check_promises(&header.tensors, bytes.len() as u64);
            // Every value is found, or reported to have another type.
            for (key, value) in header.metadata.pairs() {
                assert!(!key.is_empty() && !value.to_string().is_empty());
                let _ = (header.metadata.text(key), header.metadata.count(key), header.metadata.number(key));
                if let Ok(Some(texts)) = header.metadata.texts(key) {
                    assert_eq!(texts.iter().map(str::len).sum::<usize>(), texts.text_bytes());
                }
                if let Ok(Some(numbers)) = header.metadata.numbers(key) {
                    assert_eq!(numbers.iter().count(), numbers.len());
                }
            }
        })
    });
}

#[test]
fn packed_stores() {
    let seeds = read_small(&fixtures(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"), "interbed"));
    // Checksums are against rot, not against malice: most mutants have one that is right.
    let mend = |bytes: &mut Vec<u8>, rng: &mut Rng| {
        let page = PAGE_BYTES as usize;
        if rng.once_in(8) || bytes.len() < page {
            return;
        }
        if rng.once_in(2) {
            bytes.resize(bytes.len().next_multiple_of(page), b' ');
            let total = bytes.len() as u64;
            bytes[24..32].copy_from_slice(&total.to_le_bytes());
        }
        let mut manifest = [0; 8];
        manifest.copy_from_slice(&bytes[16..24]);
        let end = u64::from_le_bytes(manifest).saturating_add(PAGE_BYTES).min(bytes.len() as u64) as usize;
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        hash.update(&bytes[..page - 16]);
        hash.update(&bytes[page..end]);
        bytes[page - 16..page].copy_from_slice(&hash.digest128().to_le_bytes());
    };
    fuzz("store", seeds, 6500, &mend, &|bytes| {
        let file = MemoryFile::new(bytes.to_vec()).shared();
        if !Store::is_at(file.as_ref()).expect("memory can be read") {
            return Some("it is none".into());
        }
        refusal(Store::open(Arc::clone(&file)), |store| {
            let total = store.bytes();
            assert!(total <= bytes.len() as u64);
            for region in store.manifest().regions() {
                assert!(region.offset.checked_add(region.bytes).is_some_and(|end| end <= total), "{region:?}");
            }
            for file in &store.manifest().files {
                if let Ok(content) = store.read_file(&file.name) {
                    assert_eq!(content.map(|content| content.len() as u64), Some(file.bytes));
                }
            }
            let Ok(catalog) = Catalog::from_store(store) else { return };
            for (name, entry) in catalog.tensors() {
                assert!(entry.offset.checked_add(entry.bytes).is_some_and(|end| end <= total), "{name}: {entry:?}");
            }
        })
    });
}
