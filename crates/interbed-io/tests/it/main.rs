//! Files as the operating system really provides them.

mod direct_file;
mod engines;
mod gate;
mod probing;
mod scratch;
mod swap_file;

use std::fs;

use interbed_io::{AtomicWriter, ExactFile, IoError, RandomAccessFile, disk_bytes_free};

#[test]
fn reads_exactly_what_was_asked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    let file = ExactFile::open(&path).unwrap();
    assert_eq!(file.len(), 100_000);
    let mut buf = vec![0; 70_000];
    file.read_exact_at(&mut buf, 12_345).unwrap();
    assert_eq!(buf, bytes[12_345..82_345]);
    file.drop_cache(0..file.len());
    file.drop_cache(0..u64::MAX);
    file.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(buf, bytes[..70_000], "the advice changes nothing that is read");
}

#[test]
fn a_file_that_shrinks_is_named_with_its_figures() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    fs::write(&path, [7; 100]).unwrap();
    let file = ExactFile::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(30).unwrap();
    match file.read_exact_at(&mut [0; 50], 10).unwrap_err() {
        IoError::Ended { path: named, offset: 10, wanted: 50, got: 20, len_at_open: 100 } => assert_eq!(named, path),
        other => panic!("expected Ended with its figures, got {other}"),
    }
}

#[test]
fn an_offset_beyond_what_the_system_knows_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    fs::write(&path, [7; 100]).unwrap();
    let file = ExactFile::open(&path).unwrap();
    let error = file.read_exact_at(&mut [0; 8], u64::MAX - 3).unwrap_err();
    assert!(matches!(error, IoError::Read { got: 0, wanted: 8, .. }), "{error}");
    assert!(error.errno().is_some());
}

#[test]
fn what_is_not_a_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = ExactFile::open(dir.path()).unwrap_err();
    assert!(matches!(error, IoError::NotRegular { found: "a directory", .. }), "{error}");
    assert!(matches!(ExactFile::open("/dev/zero").unwrap_err(), IoError::NotRegular { .. }));
    let error = ExactFile::open(dir.path().join("absent")).unwrap_err();
    assert!(matches!(&error, IoError::Open { .. }) && error.to_string().contains("absent"), "{error}");
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let mut writer = AtomicWriter::create(&path).unwrap();
    writer.append(b"half").unwrap();
    assert!(!path.exists());
    drop(writer);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "a dropped writer leaves nothing");

    fs::write(&path, b"before").unwrap();
    let mut writer = AtomicWriter::create(&path).unwrap();
    writer.append(b"af").unwrap();
    writer.append(b"ter").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"before");
    writer.commit().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"after");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_missing_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = AtomicWriter::create(dir.path().join("none").join("out")).unwrap_err();
    assert!(matches!(&error, IoError::Write { action: "create", .. }), "{error}");
    assert!(error.to_string().contains("none/out"), "{error}");
}

#[test]
fn free_space_is_known_where_there_is_a_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let free = disk_bytes_free(dir.path()).unwrap();
    assert!((1 << 12..1 << 60).contains(&free), "{free}");
    assert!(matches!(disk_bytes_free(dir.path().join("absent")), Err(IoError::Open { .. })));
}
