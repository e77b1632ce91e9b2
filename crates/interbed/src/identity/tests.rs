use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use interbed_kernels::DType;
use interbed_weights::{Role, TensorMeta, TensorSpec, write_model};
use tempfile::TempDir;

use super::*;

fn specs() -> Vec<GroupSpec> {
    let tensors = vec![TensorSpec::new("norm", [64]), TensorSpec::new("matrix", [100, 64])];
    vec![GroupSpec { name: "layer".into(), role: Role::FeedForward, layer: 0, tensors }]
}

/// Creates a folder that contains a folder `model` with a model. Tests put notes beside it.
fn model() -> TempDir {
    let parent = tempfile::tempdir().unwrap();
    let of = |spec: &TensorSpec| TensorMeta { name: spec.name.clone(), dtype: DType::BF16, shape: spec.shape.clone() };
    let metas: Vec<_> = specs()[0].tensors.iter().map(of).collect();
    fs::create_dir(parent.path().join("model")).unwrap();
    write_model(&parent.path().join("model"), &metas, 1 << 20, &mut |tensor, sink| {
        let len = metas[tensor].shape.iter().product::<usize>() * 2;
        sink(&(0..len).map(|at| (at * 7 + tensor) as u8).collect::<Vec<_>>())
    })
    .unwrap();
    parent
}

fn weights(parent: &Path) -> PathBuf {
    parent.join("model/model.safetensors")
}

/// Returns the identity that a new process finds, and whether it had to read all weights.
fn found(parent: &Path) -> ([u8; 32], bool) {
    let mut catalog = Catalog::open(parent.join("model")).unwrap();
    let identity = WeightsIdentity::begin_in(Some(&parent.join("notes")), &mut catalog, &specs());
    let was_known = identity.known().unwrap().is_some();
    (identity.complete_now().unwrap(), !was_known)
}

/// Waits until a change is so old that later changes have another time.
fn settle() {
    std::thread::sleep(COARSEST_TIME + Duration::from_millis(100));
}

/// Changes a byte, counted from the end of the file, and restores the time of modification.
fn change(path: &Path, from_end: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let (found, mut byte) = (file.metadata().unwrap(), [0]);
    let at = found.len() - 1 - from_end;
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    file.set_modified(found.modified().unwrap()).unwrap();
}

#[test]
fn weights_are_hashed_once_as_long_as_their_files_are_as_they_were() {
    let parent = model();
    let path = weights(parent.path());
    // Files that were just written get no note, because another change might leave their time unchanged.
    let (first, read) = found(parent.path());
    assert!(read && found(parent.path()) == (first, true));
    settle();
    assert_eq!(found(parent.path()), (first, true));
    assert_eq!(found(parent.path()), (first, false));
    // A change of any byte is noticed, even if the time of modification is restored.
    let mut known = vec![first];
    for from_end in [0, 1, 5000, 100 * 128 - 1, 100 * 128 + 1] {
        change(&path, from_end);
        let (other, read) = found(parent.path());
        assert!(read && !known.contains(&other), "byte {from_end} from the end");
        known.push(other);
    }
    // A replaced file is noticed, even if it has the same time of modification.
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let copy = parent.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    fs::File::options().write(true).open(&copy).unwrap().set_modified(modified).unwrap();
    fs::rename(&copy, &path).unwrap();
    assert_eq!(found(parent.path()), (known[5], true));
}

#[test]
fn a_copy_elsewhere_has_the_same_identity_and_damaged_notes_are_none() {
    let (parent, other) = (model(), model());
    settle();
    let (identity, _) = found(parent.path());
    assert_eq!(found(other.path()), (identity, true));
    assert_eq!(found(parent.path()), (identity, false));
    let note = fs::read_dir(parent.path().join("notes")).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&note).unwrap();
    for at in [0, 25, 60, 90, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&note, &damaged).unwrap();
        assert_eq!(found(parent.path()), (identity, true), "byte {at}");
    }
    fs::write(&note, &whole[..whole.len() - 1]).unwrap();
    assert_eq!(found(parent.path()), (identity, true));
    // The process before has written a new note.
    assert_eq!(found(parent.path()), (identity, false));
}

#[test]
fn checksums_of_the_hub_are_taken_of_files_that_were_not_changed() {
    let parent = model();
    let (path, blobs) = (weights(parent.path()), parent.path().join("blobs"));
    fs::create_dir(&blobs).unwrap();
    let blob = blobs.join("a".repeat(64));
    fs::rename(&path, &blob).unwrap();
    symlink(Path::new("../blobs").join("a".repeat(64)), &path).unwrap();
    let (taken, read) = found(parent.path());
    assert!(!read && found(parent.path()) == (taken, false));
    // The content has changed, although the link still has the name of the old content.
    change(&blob, 200);
    let (other, read) = found(parent.path());
    assert!(read && other != taken);
    // A link with another name leads to another identity without reading.
    let next = blobs.join("b".repeat(64));
    fs::copy(&blob, &next).unwrap();
    fs::remove_file(&path).unwrap();
    symlink(Path::new("../blobs").join("b".repeat(64)), &path).unwrap();
    let (third, read) = found(parent.path());
    assert!(!read && third != taken && third != other);
}

#[test]
fn files_that_are_changed_while_they_are_read_have_no_identity() {
    let parent = model();
    let mut catalog = Catalog::open(parent.path().join("model")).unwrap();
    let identity = WeightsIdentity::begin_in(None, &mut catalog, &specs());
    std::thread::sleep(Duration::from_millis(30));
    change(&weights(parent.path()), 17);
    assert!(identity.complete_now().unwrap_err().to_string().contains("time put back"));
    // Files with a note that change while they are open have no identity either.
    settle();
    found(parent.path());
    assert!(!found(parent.path()).1);
    let mut catalog = Catalog::open(parent.path().join("model")).unwrap();
    let identity = WeightsIdentity::begin_in(Some(&parent.path().join("notes")), &mut catalog, &specs());
    change(&weights(parent.path()), 17);
    assert!(identity.known().is_err() && identity.complete().is_err());
}

#[test]
fn what_nobody_reads_is_read_while_the_disk_is_idle_and_while_it_is_not() {
    let parent = model();
    let want = found(parent.path()).0;
    for is_busy in [false, true] {
        let mut catalog = Catalog::open(parent.path().join("model")).unwrap();
        let identity = WeightsIdentity::begin_in(None, &mut catalog, &specs());
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while is_busy && !over.load(std::sync::atomic::Ordering::Relaxed) {
                    catalog.files()[0].read_exact_at(&mut [0; 16], 8).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            assert_eq!(identity.complete().unwrap(), want);
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}
