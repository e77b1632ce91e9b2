//! Reads in the background: both engines against real files, and what happens when reads go wrong.

use std::fs;
use std::sync::Arc;

use strata_io::{AlignedBuffer, DIRECT_ALIGN, DirectFile, DirectRead, EngineKind, ReadEngine, ReadRequest};

use crate::scratch::{Random, content, directories, seed};

type Engine = Box<dyn ReadEngine<AlignedBuffer>>;

/// Runs a test with every engine that this machine allows.
fn with_engines(depth: usize, test: impl Fn(Engine)) {
    for kind in [EngineKind::Pread, EngineKind::Uring] {
        match kind.start(depth) {
            Ok(engine) => {
                assert_eq!(engine.name(), kind.name());
                test(engine);
            }
            Err(error) => {
                assert_eq!(kind, EngineKind::Uring, "pread workers start everywhere: {error}");
                println!("not tested here: {error}");
            }
        }
    }
}

fn buffer(len: usize) -> AlignedBuffer {
    AlignedBuffer::new_zeroed(len).unwrap()
}

#[test]
fn random_reads_bring_what_lies_in_the_file() {
    for (name, dir) in directories() {
        let bytes = content(3_000_001);
        let path = dir.path().join("data");
        fs::write(&path, &bytes).unwrap();
        let file: Arc<dyn DirectRead> = Arc::new(DirectFile::open(&path).unwrap());
        println!("{name}: direct {}", file.is_direct());
        for depth in [1, 3, 8] {
            with_engines(depth, |mut engine| {
                let seed = seed();
                let mut random = Random::new(seed);
                let mut spans = Vec::new();
                let blocks = bytes.len().div_ceil(DIRECT_ALIGN) as u64;
                for _ in 0..200 {
                    let offset = random.below(blocks) * DIRECT_ALIGN as u64;
                    let len = DIRECT_ALIGN * (1 + random.below(64) as usize);
                    let left = bytes.len() - offset as usize;
                    let needed = random.below(len.min(left) as u64 + 1) as usize;
                    let tag = spans.len() as u64;
                    spans.push((offset as usize, len, needed));
                    let request = ReadRequest {
                        tag,
                        file: Arc::clone(&file),
                        offset,
                        needed,
                        len,
                        buffer: buffer(len + DIRECT_ALIGN),
                    };
                    engine.submit(request);
                    assert_eq!(engine.in_flight(), 1 + tag as usize);
                }
                let mut seen = vec![false; spans.len()];
                while let Some(done) = engine.wait() {
                    let (offset, len, _) = spans[done.tag as usize];
                    done.result.unwrap();
                    let end = bytes.len().min(offset + len);
                    assert!(
                        done.buffer.as_slice()[..end - offset] == bytes[offset..end],
                        "{name}, seed {seed}: {offset} {len}"
                    );
                    assert!(
                        done.buffer.as_slice()[len..].iter().all(|byte| *byte == 0),
                        "nothing beyond the length is written"
                    );
                    assert!(!std::mem::replace(&mut seen[done.tag as usize], true), "each read comes back once");
                    assert!(done.started <= done.finished);
                }
                assert!(seen.iter().all(|seen| *seen) && engine.in_flight() == 0 && engine.poll().is_none());
            });
        }
    }
}
