//! Files read past the page cache: bytes, ends, refusals, changes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use interbed_io::{AlignedBuffer, DIRECT_ALIGN, DirectFile, DirectRead, FileChange, IoError, aligned_superset};

use crate::scratch::{content, directories, seed};

const BLOCK: usize = DIRECT_ALIGN;

fn buffer(len: usize) -> AlignedBuffer {
    AlignedBuffer::new_zeroed(len).unwrap()
}

/// Reads a range as streaming does: reads its aligned superset, and views the range in place.
fn read(file: &DirectFile, start: usize, end: usize) -> Result<Vec<u8>, IoError> {
    let superset = aligned_superset(start as u64..end as u64).unwrap();
    let base = superset.start as usize;
    let mut memory = buffer(superset.end as usize - base);
    file.read_aligned_at(&mut memory.as_mut()[..superset.end as usize - base], superset.start, end - base)?;
    Ok(memory.as_slice()[start - base..end - base].to_vec())
}

/// The ways to open a file, with their names.
fn opened(path: &Path) -> [(&'static str, DirectFile); 2] {
    [("direct", DirectFile::open(path).unwrap()), ("buffered", DirectFile::open_buffered(path).unwrap())]
}

#[test]
fn any_range_is_read_by_its_superset() {
    for (place, dir) in directories() {
        let bytes = content(1_234_567);
        let path = dir.path().join("data");
        fs::write(&path, &bytes).unwrap();
        for (mode, file) in opened(&path) {
            assert_eq!((file.len(), file.is_empty()), (bytes.len() as u64, false));
            assert_eq!(file.is_direct(), file.direct_fd().is_some());
            assert!(mode == "direct" || !file.is_direct());
            let seed = seed();
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..100 {
                let start = random.usize(..bytes.len());
                let end = random.usize(start..=bytes.len());
                assert!(
                    read(&file, start, end).unwrap() == bytes[start..end],
                    "{place}, {mode}, seed {seed}: {start}..{end}"
                );
            }
            for end in [bytes.len(), bytes.len() - 1] {
                assert!(read(&file, end - 1, end).unwrap() == bytes[end - 1..end], "{place}, {mode}: the last bytes");
            }
            file.check_unchanged().unwrap();
        }
    }
}

#[test]
fn the_superset_of_a_range_is_whole_blocks() {
    assert_eq!(aligned_superset(0..0), Some(0..0));
    assert_eq!(aligned_superset(1..2), Some(0..4096));
    assert_eq!(aligned_superset(4096..8192), Some(4096..8192));
    assert_eq!(aligned_superset(4095..8193), Some(0..12288));
    assert_eq!(aligned_superset(0..u64::MAX), None);
}

#[test]
fn more_than_the_file_has_is_an_error_with_its_figures() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    fs::write(&path, content(10_000)).unwrap();
    for (mode, file) in opened(&path) {
        let mut memory = buffer(4 * BLOCK);
        file.read_aligned_at(memory.as_mut(), 0, 10_000).unwrap();
        match file.read_aligned_at(memory.as_mut(), BLOCK as u64, 10_000).unwrap_err() {
            IoError::Ended { path: named, offset: 4096, wanted: 10_000, got: 5904, len_at_open: 10_000 } => {
                assert_eq!(named, path, "{mode}");
            }
            other => panic!("{mode}: {other}"),
        }
        assert!(matches!(
            file.read_aligned_at(memory.as_mut(), 1 << 40, 1).unwrap_err(),
            IoError::Ended { got: 0, wanted: 1, .. }
        ));
        file.read_aligned_at(memory.as_mut(), 1 << 40, 0).unwrap();
    }
}

#[test]
fn a_file_that_is_cut_while_open_ends_early_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let bytes = content(100_000);
    fs::write(&path, &bytes).unwrap();
    for (mode, file) in opened(&path) {
        OpenOptions::new().write(true).open(&path).unwrap().set_len(50_000).unwrap();
        assert!(read(&file, 10_000, 50_000).unwrap() == bytes[10_000..50_000], "{mode}: what is left can be read");
        let error = read(&file, 45_000, 60_000).unwrap_err();
        assert!(matches!(error, IoError::Ended { offset: 40_960, got: 9_040, len_at_open: 100_000, .. }), "{error}");
        match file.check_unchanged().unwrap_err() {
            IoError::Changed { path: named, change: FileChange::Length { opened: 100_000, now: 50_000 } } => {
                assert_eq!(named, path);
            }
            other => panic!("{mode}: {other}"),
        }
        fs::write(&path, &bytes).unwrap();
    }
}

#[test]
fn a_file_that_was_written_to_or_replaced_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("data"), dir.path().join("other"));
    fs::write(&path, [1; 5000]).unwrap();
    let change = |file: &DirectFile| match file.check_unchanged() {
        Ok(()) => None,
        Err(IoError::Changed { change, .. }) => Some(change),
        Err(other) => panic!("{other}"),
    };
    let file = DirectFile::open(&path).unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    writer.write_all_at(&[2; 10], 100).unwrap();
    // Two writes may fall into one tick of the clock that sets the time of modification.
    writer.set_modified(SystemTime::now() + Duration::from_secs(10)).unwrap();
    assert_eq!(change(&file), Some(FileChange::Modified));

    let file = DirectFile::open(&path).unwrap();
    assert_eq!(change(&file), None);
    fs::write(&other, [1; 5000]).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(change(&file), Some(FileChange::Replaced));
    assert!(file.check_unchanged().unwrap_err().to_string().contains("data was changed"));

    let file = DirectFile::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(change(&file), None, "what is open can be read though its name is gone");
    assert_eq!(read(&file, 10, 20).unwrap(), [1; 10]);
}

#[test]
fn what_is_not_aligned_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    fs::write(&path, content(100_000)).unwrap();
    let file = DirectFile::open_buffered(&path).unwrap();
    let mut memory = buffer(4 * BLOCK);
    let mut check = |range: std::ops::Range<usize>, offset: u64, needed: usize, expect: &str| {
        let error = file.read_aligned_at(&mut memory.as_mut()[range], offset, needed).unwrap_err();
        assert!(matches!(error, IoError::BadRequest { .. }) && error.to_string().contains(expect), "{error}");
        assert_eq!(error.errno(), None);
    };
    check(1..BLOCK + 1, 0, 1, "does not start on a block");
    check(0..100, 0, 1, "length is not a number of blocks");
    check(0..BLOCK, 512, 1, "offset does not lie on a block");
    check(0..BLOCK, 0, BLOCK + 1, "more bytes are needed");
    check(0..BLOCK, (i64::MAX as u64 + 1) - BLOCK as u64, 1, "beyond what a file can have");
    check(0..BLOCK, u64::MAX - 4095, 1, "beyond what a file can have");
}

#[test]
fn what_cannot_be_read_at_an_offset_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        DirectFile::open(dir.path()),
        Err(IoError::NotRegular { found: "a directory", .. } | IoError::Open { .. })
    ));
    assert!(matches!(DirectFile::open(dir.path().join("absent")), Err(IoError::Open { .. })));
    assert!(matches!(
        DirectFile::open_buffered("/dev/null"),
        Err(IoError::NotRegular { found: "a character device", .. })
    ));
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
    assert!(matches!(DirectFile::open_buffered(&pipe), Err(IoError::NotRegular { found: "a pipe", .. })));

    let empty = dir.path().join("empty");
    File::create(&empty).unwrap();
    for (_, file) in opened(&empty) {
        assert!(file.is_empty());
        file.read_aligned_at(buffer(BLOCK).as_mut(), 0, 0).unwrap();
        assert!(matches!(file.read_aligned_at(buffer(BLOCK).as_mut(), 0, 1), Err(IoError::Ended { got: 0, .. })));
    }
}

#[test]
fn a_file_system_that_refuses_direct_reads_is_read_through_the_page_cache() {
    // procfs and sysfs have no direct reads. Most of their files give their length as 0; some of sysfs have a true one.
    let file = DirectFile::open("/proc/version").unwrap();
    assert!(!file.is_direct() && file.direct_fd().is_none());
    let path = Path::new("/sys/kernel/btf/vmlinux");
    if !path.exists() {
        return println!("reads not tested: {} is absent", path.display());
    }
    let expect = fs::read(path).unwrap();
    let file = DirectFile::open(path).unwrap();
    assert!(!file.is_direct());
    assert!(read(&file, 1000, expect.len()).unwrap() == expect[1000..]);
}

#[test]
fn a_block_device_is_read_like_a_file() {
    if !rustix::process::geteuid().is_root() {
        return println!("not tested: a loop device takes root");
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    // Not a whole number of blocks of 4 KiB: devices come in sectors of 512 bytes.
    let bytes = content((1 << 20) + 512);
    fs::write(&path, &bytes).unwrap();
    let output = match Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(&path).output() {
        Ok(output) if output.status.success() => output,
        Ok(output) => return println!("not tested: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return println!("not tested: losetup: {error}"),
    };
    let device = LoopDevice(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    for (mode, file) in opened(Path::new(&device.0)) {
        assert_eq!(file.len(), bytes.len() as u64, "{mode}");
        assert_eq!(file.is_direct(), mode == "direct");
        assert!(read(&file, 5000, bytes.len()).unwrap() == bytes[5000..], "{mode}: to the end");
        assert!(read(&file, 4097, 70_001).unwrap() == bytes[4097..70_001], "{mode}");
        assert!(matches!(read(&file, 0, bytes.len() + 1), Err(IoError::Ended { .. })), "{mode}");
        file.check_unchanged().unwrap();
    }
}

/// Detaches the device, also when a test fails.
struct LoopDevice(String);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
