//! Swap space on real file systems.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use interbed_io::testing::{Effect, Fault, FaultySpace, Which, WriteEffect};
use interbed_io::{AlignedBuffer, DIRECT_ALIGN, DirectRead, DirectWrite, IoError, SwapFile, SwapFileError};

use crate::scratch::content;

const BLOCK: usize = DIRECT_ALIGN;

fn buffer(bytes: &[u8]) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new_zeroed(bytes.len()).unwrap();
    buffer.as_mut()[..bytes.len()].copy_from_slice(bytes);
    buffer
}

#[test]
fn what_is_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = SwapFile::create(dir.path(), 64 * BLOCK as u64).unwrap();
    let bytes = content(3 * BLOCK);
    file.write_aligned_at(buffer(&bytes).as_slice(), 7 * BLOCK as u64).unwrap();
    let mut back = AlignedBuffer::new_zeroed(3 * BLOCK).unwrap();
    file.read_aligned_at(back.as_mut(), 7 * BLOCK as u64, 3 * BLOCK).unwrap();
    assert_eq!(back.as_slice(), bytes);
    assert_eq!(file.len(), 64 * BLOCK as u64);
}

#[test]
fn room_is_taken_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let error = SwapFile::create(dir.path(), 1 << 60).unwrap_err();
    assert!(matches!(error, SwapFileError::NoRoom { wanted, .. } if wanted == 1 << 60), "{error}");
    assert!(error.to_string().contains("free"), "{error}");
    let file = SwapFile::create(dir.path(), 8 << 20).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nobody else can reach it");
    if let Some(fd) = file.direct_fd() {
        let metadata = fs::File::from(fd.try_clone_to_owned().unwrap()).metadata().unwrap();
        assert!(metadata.blocks() * 512 >= 8 << 20, "{} blocks were taken", metadata.blocks());
        assert_eq!((metadata.mode() & 0o777, metadata.nlink()), (0o600, 0));
    }
}

#[test]
fn sizes_and_directories_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for len in [0, 1, BLOCK as u64 + 1, u64::MAX, u64::MAX / BLOCK as u64 * BLOCK as u64] {
        assert!(matches!(SwapFile::create(dir.path(), len), Err(SwapFileError::BadSize { .. })), "{len}");
    }
    let error = SwapFile::create(dir.path().join("absent"), BLOCK as u64).unwrap_err();
    assert!(
        matches!(&error, SwapFileError::Io(IoError::Open { .. })) && error.to_string().contains("absent"),
        "{error}"
    );
    // Root may write anywhere, so this is tested only for other users.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o500)).unwrap();
    if fs::write(dir.path().join("try"), b"x").is_err() {
        assert!(matches!(SwapFile::create(dir.path(), BLOCK as u64), Err(SwapFileError::Io(_))));
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn memory_is_no_room_to_swap_to() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        println!("not tested: there is no /dev/shm");
        return;
    };
    let in_memory = SwapFile::is_in_memory(dir.path()).unwrap();
    let error = SwapFile::create(dir.path(), BLOCK as u64).err();
    assert_eq!(matches!(error, Some(SwapFileError::InMemory { .. })), in_memory, "{error:?}");
}

#[test]
fn requests_beyond_the_room_or_off_the_blocks_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = SwapFile::create(dir.path(), 4 * BLOCK as u64).unwrap();
    let bytes = buffer(&content(2 * BLOCK));
    assert!(matches!(file.write_aligned_at(bytes.as_slice(), 3 * BLOCK as u64), Err(IoError::Write { .. })));
    assert!(matches!(file.write_aligned_at(&bytes.as_slice()[..100], 0), Err(IoError::BadRequest { .. })));
    assert!(matches!(file.write_aligned_at(bytes.as_slice(), 100), Err(IoError::BadRequest { .. })));
    let mut back = AlignedBuffer::new_zeroed(2 * BLOCK).unwrap();
    assert!(matches!(file.read_aligned_at(back.as_mut(), 3 * BLOCK as u64, 2 * BLOCK), Err(IoError::Ended { .. })));
}

#[test]
fn faults_come_where_they_were_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(SwapFile::create(dir.path(), 8 * BLOCK as u64).unwrap());
    let faulty = FaultySpace::new(file);
    let (old, new) = (buffer(&content(2 * BLOCK)[..BLOCK]), buffer(&content(2 * BLOCK)[BLOCK..]));
    let read = || {
        let mut back = AlignedBuffer::new_zeroed(BLOCK).unwrap();
        faulty.read_aligned_at(back.as_mut(), 0, BLOCK).map(|()| back.as_slice().to_vec())
    };
    faulty.write_aligned_at(old.as_slice(), 0).unwrap();
    faulty.fail_writes(1, 1, WriteEffect::Errno(28));
    faulty.write_aligned_at(old.as_slice(), 0).unwrap();
    assert_eq!(faulty.write_aligned_at(new.as_slice(), 0).unwrap_err().errno(), Some(28));
    faulty.fail_writes(0, 1, WriteEffect::Lost);
    faulty.write_aligned_at(new.as_slice(), 0).unwrap();
    assert_eq!(read().unwrap(), old.as_slice());
    faulty.write_aligned_at(new.as_slice(), 0).unwrap();
    assert_eq!((read().unwrap(), faulty.num_writes()), (new.as_slice().to_vec(), 5));
    faulty.reads.inject(Fault { reads: Which::All, effect: Effect::EndAfter(100), times: Some(1) });
    assert!(matches!(read(), Err(IoError::Ended { got: 100, .. })));
    assert_eq!(read().unwrap(), new.as_slice());
}
