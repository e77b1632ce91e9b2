//! Measuring a disk, and files that fail or are slow on purpose.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use interbed_io::testing::{Effect, Fault, FaultyFile, RecordedRead, Throttle, ThrottledFile, Which};
use interbed_io::{
    AlignedBuffer, DirectFile, DirectRead, EngineKind, FileChange, IoError, ProbeLimits, ReadSettings, probe,
    sequential_bandwidth,
};
use tempfile::TempDir;

use crate::scratch::content;

const MIB: usize = 1 << 20;

fn file_of(len: usize) -> (TempDir, Arc<dyn DirectRead>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    fs::write(&path, content(len)).unwrap();
    let file = DirectFile::open(&path).unwrap();
    (dir, Arc::new(file))
}

#[test]
fn bandwidth_is_measured_over_the_range_and_nothing_else() {
    let (_dir, file) = file_of(3 * MIB + 1000);
    let recorded = Arc::new(FaultyFile::new(file));
    let file: Arc<dyn DirectRead> = Arc::clone(&recorded) as _;
    let rate = sequential_bandwidth(&file, 5000..u64::MAX, EngineKind::Pread, 1, MIB).unwrap();
    assert!(rate.is_finite() && rate > 0.0);
    let read = |offset: usize, len, needed| RecordedRead { offset: offset as u64, len, needed, failed: false };
    let expect =
        [read(4096, MIB, MIB), read(4096 + MIB, MIB, MIB), read(4096 + 2 * MIB, MIB - 4096 + 4096, MIB + 1000 - 4096)];
    let reads = recorded.reads();
    assert_eq!(reads[..2], expect[..2]);
    assert_eq!(reads[2], expect[2]);
    assert_eq!(reads.len(), 3);
}

#[test]
fn a_disk_that_cannot_be_measured_says_why() {
    let (_dir, file) = file_of(MIB);
    let faulty = Arc::new(FaultyFile::new(Arc::clone(&file)));
    faulty.inject(Fault { reads: Which::Nth(2), effect: Effect::Errno(5), times: None });
    let as_file: Arc<dyn DirectRead> = Arc::clone(&faulty) as _;
    let error = sequential_bandwidth(&as_file, 0..u64::MAX, EngineKind::Pread, 2, 64 << 10).unwrap_err();
    assert_eq!(error.errno(), Some(5), "{error}");
    let limits = ProbeLimits { memory_bytes: MIB, read_bytes: MIB as u64, time: Duration::from_secs(1) };
    faulty.inject(Fault { reads: Which::All, effect: Effect::Errno(5), times: Some(1) });
    assert_eq!(probe(&as_file, 0..u64::MAX, &limits).unwrap_err().errno(), Some(5));
    for (range, chunk) in [(0..0, MIB), (1 << 30..1 << 31, MIB), (0..1, 0), (0..1, 1000)] {
        let error = sequential_bandwidth(&file, range, EngineKind::Pread, 1, chunk).unwrap_err();
        assert!(matches!(error, IoError::BadRequest { .. }), "{error}");
    }
    assert!(matches!(probe(&file, 0..0, &limits), Err(IoError::BadRequest { .. })));
}

#[test]
fn a_probe_finds_settings_within_its_limits() {
    let (_dir, file) = file_of(5 * MIB + 1);
    let recorded = Arc::new(FaultyFile::new(Arc::clone(&file)));
    let limits = ProbeLimits { memory_bytes: MIB, read_bytes: 24 << 20, time: Duration::from_secs(20) };
    for file in [file, Arc::clone(&recorded) as Arc<dyn DirectRead>] {
        let settings = probe(&file, 4096..u64::MAX, &limits).unwrap();
        println!("{settings}");
        assert!(settings.depth * settings.chunk_bytes <= limits.memory_bytes && settings.depth > 0);
        assert!(settings.bytes_per_s > 0.0 && settings.direct == file.is_direct());
        settings.engine.start::<AlignedBuffer>(settings.depth).unwrap();
    }
    let reads = recorded.reads();
    assert!(reads.iter().all(|read| read.offset >= 4096 && read.needed <= read.len && read.len <= MIB));
    let bytes: usize = reads.iter().map(|read| read.needed).sum();
    // Each trial reads at most a twelfth of the limit, plus one buffer for each worker.
    assert!(bytes <= 12 * (2 * MIB + MIB), "{bytes}");
}

#[test]
fn settings_are_one_line_for_people() {
    let settings =
        ReadSettings { engine: EngineKind::Pread, depth: 4, chunk_bytes: 4 << 20, direct: true, bytes_per_s: 2.414e9 };
    assert_eq!(settings.to_string(), "4 pread workers, chunks of 4 MiB, O_DIRECT, 2.41 GB/s");
    let settings = ReadSettings { engine: EngineKind::Uring, chunk_bytes: 64 << 10, direct: false, ..settings };
    let expect = "io_uring of depth 4, chunks of 64 KiB, through the page cache, dropped behind, 2.41 GB/s";
    assert_eq!(settings.to_string(), expect);
}

#[test]
fn a_faulty_file_fails_as_it_was_told_and_keeps_count() {
    let (_dir, inner) = file_of(MIB);
    let file = FaultyFile::new(inner);
    let mut memory = AlignedBuffer::new_zeroed(8192).unwrap();
    let mut read = |offset| file.read_aligned_at(memory.as_mut(), offset, 8192);
    file.inject(Fault { reads: Which::Nth(1), effect: Effect::Errno(5), times: None });
    file.inject(Fault { reads: Which::Touching(50_000..50_001), effect: Effect::EndAfter(7), times: Some(2) });
    read(0).unwrap();
    let error = read(0).unwrap_err();
    assert!(error.errno() == Some(5) && matches!(error, IoError::Read { offset: 0, wanted: 8192, .. }), "{error}");
    read(53_248).unwrap();
    assert!(matches!(read(49_152), Err(IoError::Ended { offset: 49_152, got: 7, .. })));
    assert!(matches!(read(45_056), Err(IoError::Ended { .. })), "its end touches the range");
    read(49_152).unwrap();
    file.inject(Fault { reads: Which::All, effect: Effect::Errno(12), times: None });
    assert_eq!(read(0).unwrap_err().errno(), Some(12));
    file.heal();
    read(0).unwrap();
    let failed: Vec<bool> = file.reads().iter().map(|read| read.failed).collect();
    assert_eq!(failed, [false, true, false, true, true, false, true, false]);

    file.check_unchanged().unwrap();
    file.pretend_changed(Some(FileChange::Modified));
    assert!(matches!(file.check_unchanged(), Err(IoError::Changed { change: FileChange::Modified, .. })));
}

#[test]
fn a_throttled_file_takes_no_less_than_its_disk_would() {
    let (_dir, inner) = file_of(MIB);
    let disk = Arc::new(Throttle::new(100e6, Duration::from_millis(2)));
    let file: Arc<dyn DirectRead> = Arc::new(ThrottledFile::new(inner, disk));
    let began = Instant::now();
    let rate = sequential_bandwidth(&file, 0..u64::MAX, EngineKind::Pread, 4, 64 << 10).unwrap();
    // Sleeping ends late, never early: these bounds hold on any machine, however loaded.
    assert!(began.elapsed() >= Duration::from_secs_f64(MIB as f64 / 100e6));
    assert!(rate <= 101e6, "{rate}");
}
