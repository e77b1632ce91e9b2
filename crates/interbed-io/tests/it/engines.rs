//! Background reads: both engines on real files, and what happens when reads fail.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use interbed_io::testing::{Effect, Fault, FaultyFile, Which};
use interbed_io::{
    AlignedBuffer, DIRECT_ALIGN, DirectFile, DirectRead, EngineKind, IoError, ReadEngine, ReadRequest, ReaderPool,
};

use crate::gate::Gate;
use crate::scratch::{content, directories, seed};

const BLOCK: usize = DIRECT_ALIGN;

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
                let mut random = fastrand::Rng::with_seed(seed);
                let mut spans = Vec::new();
                let blocks = bytes.len().div_ceil(DIRECT_ALIGN) as u64;
                for _ in 0..200 {
                    let offset = random.u64(..blocks) * DIRECT_ALIGN as u64;
                    let len = DIRECT_ALIGN * (1 + random.usize(..64));
                    let left = bytes.len() - offset as usize;
                    let needed = random.usize(..=len.min(left));
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

/// A file whose descriptor the kernel refuses to read from.
struct WriteOnly(DirectFile, fs::File);

impl DirectRead for WriteOnly {
    fn path(&self) -> &Path {
        self.0.path()
    }

    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_aligned_at(&self, buf: &mut [u8], offset: u64, needed: usize) -> Result<(), IoError> {
        use std::os::unix::fs::FileExt;
        let read = self.1.read_exact_at(buf, offset);
        read.map_err(|source| IoError::Read { path: self.path().to_owned(), offset, wanted: needed, got: 0, source })
    }

    fn check_unchanged(&self) -> Result<(), IoError> {
        self.0.check_unchanged()
    }

    fn direct_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.1.as_fd())
    }
}

#[test]
fn faults_come_back_with_file_and_place_and_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let bytes = content(1 << 20);
    fs::write(&path, &bytes).unwrap();
    let good = DirectFile::open(&path).unwrap();
    let write_only =
        WriteOnly(DirectFile::open(&path).unwrap(), fs::OpenOptions::new().write(true).open(&path).unwrap());
    let faulty = FaultyFile::new(Arc::new(DirectFile::open(&path).unwrap()));
    faulty.inject(Fault { reads: Which::Touching(0..1), effect: Effect::Panic, times: None });
    faulty.inject(Fault { reads: Which::Touching(65_536..65_537), effect: Effect::EndAfter(100), times: None });
    let (good, write_only, faulty): (Arc<dyn DirectRead>, Arc<dyn DirectRead>, Arc<dyn DirectRead>) =
        (Arc::new(good), Arc::new(write_only), Arc::new(faulty));
    with_engines(2, |mut engine| {
        let mut submit = |tag, file: &Arc<dyn DirectRead>, offset, needed, len, buffer_len| {
            let file = Arc::clone(file);
            engine.submit(ReadRequest { tag, file, offset, needed, len, buffer: buffer(buffer_len) });
        };
        submit(0, &write_only, 8192, BLOCK, BLOCK, BLOCK);
        submit(1, &faulty, 0, BLOCK, BLOCK, BLOCK);
        submit(2, &good, 100, BLOCK, BLOCK, BLOCK);
        submit(3, &good, 0, BLOCK, 100 * BLOCK, BLOCK);
        submit(4, &good, 0, 2 * BLOCK, BLOCK, BLOCK);
        submit(5, &good, (1 << 20) - BLOCK as u64, 2 * BLOCK, 2 * BLOCK, 2 * BLOCK);
        submit(6, &faulty, 65_536, BLOCK, BLOCK, BLOCK);
        submit(7, &good, 0, 0, 0, BLOCK);
        submit(8, &good, 4096, BLOCK, 2 * BLOCK, 2 * BLOCK);
        let mut results: Vec<Option<Result<(), IoError>>> = (0..9).map(|_| None).collect();
        while let Some(done) = engine.wait() {
            if done.tag == 8 {
                assert!(done.buffer.as_slice() == &bytes[4096..3 * 4096], "after all the faults, reads go on");
            }
            assert!(results[done.tag as usize].replace(done.result).is_none());
        }
        let mut results = results.into_iter().map(Option::unwrap);
        match results.next().unwrap().unwrap_err() {
            IoError::Read { path: named, offset: 8192, source, .. } => {
                assert_eq!((named, source.raw_os_error()), (path.clone(), Some(9)), "EBADF");
            }
            other => panic!("{other}"),
        }
        match results.next().unwrap().unwrap_err() {
            IoError::Panicked { path: named, offset: 0, message } => {
                assert_eq!((named, message.as_str()), (path.clone(), "a panic was asked for at offset 0"));
            }
            other => panic!("{other}"),
        }
        for expect in ["offset does not lie on a block", "the buffer is shorter than the read", "more bytes are needed"]
        {
            let error = results.next().unwrap().unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
        }
        assert!(matches!(results.next().unwrap(), Err(IoError::Ended { wanted: 8192, got: 4096, .. })));
        assert!(matches!(results.next().unwrap(), Err(IoError::Ended { got: 100, .. })));
        assert!(results.all(|result| result.is_ok()));
    });
}

#[test]
fn a_file_cut_while_engines_read_it_ends_early() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    with_engines(4, |mut engine| {
        fs::write(&path, content(200_000)).unwrap();
        let file: Arc<dyn DirectRead> = Arc::new(DirectFile::open(&path).unwrap());
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100_000).unwrap();
        for tag in 0..3 {
            let (file, offset, len) = (Arc::clone(&file), tag * 65_536, 65_536);
            engine.submit(ReadRequest { tag, file, offset, needed: len, len, buffer: buffer(len) });
        }
        let mut got = [usize::MAX; 3];
        while let Some(done) = engine.wait() {
            got[done.tag as usize] = match done.result {
                Ok(()) => 65_536,
                Err(IoError::Ended { got, len_at_open: 200_000, wanted: 65_536, .. }) => got,
                Err(other) => panic!("{other}"),
            };
        }
        assert_eq!(got, [65_536, 100_000 - 65_536, 0]);
    });
}

#[test]
fn as_many_reads_as_the_depth_begin_in_order_and_the_rest_wait() {
    let gate = Arc::new(Gate::default());
    let mut pool = ReaderPool::new(3).unwrap();
    for tag in 0..10 {
        let file = Arc::clone(&gate) as Arc<dyn DirectRead>;
        pool.submit(ReadRequest { tag, file, offset: tag * 4096, needed: BLOCK, len: BLOCK, buffer: buffer(BLOCK) });
    }
    let mut begun = gate.entered(3);
    begun.sort_unstable();
    assert_eq!(begun, [0, 4096, 8192], "workers that take turns may enter in any order, but take the first three");
    assert!(pool.poll().is_none());
    assert_eq!(pool.in_flight(), 10);
    for ended in 1..=7 {
        gate.open(1);
        assert!(pool.wait().unwrap().result.is_ok());
        let begun = gate.entered(3 + ended);
        assert_eq!(*begun.last().unwrap(), (2 + ended as u64) * 4096, "a read that ends lets the next one begin");
        assert_eq!((begun.len(), pool.in_flight()), (3 + ended, 10 - ended));
    }
    gate.open(3);
    assert_eq!(std::iter::from_fn(|| pool.wait()).count(), 3);
    assert!(pool.wait().is_none() && pool.poll().is_none());
}

#[test]
fn a_dropped_pool_waits_for_what_is_in_flight_and_forgets_the_rest() {
    let gate = Arc::new(Gate::default());
    let mut pool = ReaderPool::new(2).unwrap();
    for tag in 0..5 {
        let file = Arc::clone(&gate) as Arc<dyn DirectRead>;
        pool.submit(ReadRequest { tag, file, offset: tag * 4096, needed: BLOCK, len: BLOCK, buffer: buffer(BLOCK) });
    }
    gate.entered(2);
    let dropper = std::thread::spawn(move || drop(pool));
    // Queued requests are dropped before workers are joined: two owners of the gate are left, and this one.
    while Arc::strong_count(&gate) > 3 {
        std::thread::yield_now();
    }
    gate.open(2);
    dropper.join().unwrap();
    assert_eq!((gate.entered(2).len(), gate.left()), (2, 2), "none was begun after, none abandoned");
    assert_eq!(Arc::strong_count(&gate), 1);
}

/// A buffer whose memory is inside itself, and so moves with it.
#[repr(align(4096))]
struct Inline([u8; BLOCK]);

impl AsMut<[u8]> for Inline {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[test]
fn the_ring_serves_buffers_that_move_with_their_owner() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let bytes = content(4 * BLOCK);
    fs::write(&path, &bytes).unwrap();
    let file: Arc<dyn DirectRead> = Arc::new(DirectFile::open(&path).unwrap());
    for kind in [EngineKind::Pread, EngineKind::Uring] {
        let mut engine = match kind.start::<Inline>(2) {
            Ok(engine) => engine,
            Err(error) => {
                assert_eq!(kind, EngineKind::Uring);
                return println!("not tested here: {error}");
            }
        };
        for tag in 0..4 {
            let (file, len) = (Arc::clone(&file), BLOCK);
            let buffer = Inline([0; BLOCK]);
            engine.submit(ReadRequest { tag, file, offset: tag * len as u64, needed: len, len, buffer });
        }
        while let Some(done) = engine.wait() {
            done.result.unwrap();
            let at = done.tag as usize * BLOCK;
            assert!(done.buffer.0 == bytes[at..at + BLOCK]);
        }
    }
}

#[test]
fn engines_may_be_dropped_or_moved_with_reads_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let bytes = content(8 << 20);
    fs::write(&path, &bytes).unwrap();
    let file: Arc<dyn DirectRead> = Arc::new(DirectFile::open(&path).unwrap());
    let submit = |engine: &mut Engine| {
        for tag in 0..8 {
            let (file, len) = (Arc::clone(&file), 1 << 20);
            engine.submit(ReadRequest { tag, file, offset: tag << 20, needed: len, len, buffer: buffer(len) });
        }
    };
    for polled in 0..3 {
        with_engines(4, |mut engine| {
            submit(&mut engine);
            for _ in 0..polled {
                engine.wait().unwrap().result.unwrap();
            }
            drop(engine);
            assert_eq!(Arc::strong_count(&file), 1, "nothing is left of the requests");
        });
    }
    // The thread that submits is gone before the completions are taken; the reads that its exit cancelled are made
    // again.
    with_engines(4, |mut engine| {
        let mut engine = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    submit(&mut engine);
                    engine
                })
                .join()
                .unwrap()
        });
        for _ in 0..8 {
            let done = engine.wait().unwrap();
            done.result.unwrap();
            let at = (done.tag as usize) << 20;
            assert!(done.buffer.as_slice() == &bytes[at..at + (1 << 20)]);
        }
    });
}

#[test]
fn polling_alone_gets_all_reads_done() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    fs::write(&path, content(1 << 20)).unwrap();
    let direct: Arc<dyn DirectRead> = Arc::new(DirectFile::open(&path).unwrap());
    let buffered: Arc<dyn DirectRead> = Arc::new(DirectFile::open_buffered(&path).unwrap());
    with_engines(2, |mut engine| {
        for tag in 0..16 {
            let file = Arc::clone(if tag % 3 == 0 { &buffered } else { &direct });
            engine.submit(ReadRequest {
                tag,
                file,
                offset: tag << 16,
                needed: 1 << 16,
                len: 1 << 16,
                buffer: buffer(1 << 16),
            });
        }
        let mut left = 16;
        while left > 0 {
            match engine.poll() {
                Some(done) => {
                    done.result.unwrap();
                    left -= 1;
                }
                None => std::thread::yield_now(),
            }
            assert_eq!(engine.in_flight(), left);
        }
    });
}
