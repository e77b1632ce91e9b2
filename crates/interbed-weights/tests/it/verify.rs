//! Tests of files of other formats, which are compared with digests that lie around them.

use std::fs;
use std::ops::ControlFlow;
use std::process::Command;

use interbed_weights::{Catalog, Damage, Method, verify};

use crate::files::{MemoryFile, safetensors};

#[test]
fn files_are_held_against_the_digests_that_lie_around() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = safetensors(r#"{"one":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 8);
    let file = dir.path().join("model.safetensors");
    fs::write(&file, &bytes).unwrap();
    let checked = || {
        let catalog = Catalog::open(dir.path()).unwrap();
        let mut checked = verify(&catalog, &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(checked.len(), 1);
        checked.remove(0)
    };
    assert_eq!((checked().method, checked().bytes), (Method::ReadOnly, bytes.len() as u64));
    let output = Command::new("sha256sum").arg(&file).output().unwrap();
    let digest = String::from_utf8(output.stdout).unwrap();
    let beside = dir.path().join("model.safetensors.sha256");
    fs::write(&beside, &digest).unwrap();
    assert!(checked().damage.is_none());
    assert_eq!(checked().method, Method::Sha256 { place: "model.safetensors.sha256".into() });
    fs::write(&beside, digest.replace(&digest[..1], if digest.starts_with('0') { "1" } else { "0" })).unwrap();
    assert!(matches!(checked().damage, Some(Damage::Differs { .. })));

    // What the Hub's client notes, and how it names its blobs, which says most.
    let digits = &digest[..64];
    let noted = dir.path().join(".cache/huggingface/download");
    fs::create_dir_all(&noted).unwrap();
    fs::remove_file(&beside).unwrap();
    fs::write(noted.join("model.safetensors.metadata"), format!("commit\n{digits}\n0.0\n")).unwrap();
    assert!(matches!(checked().method, Method::Sha256 { place } if place.contains("download")));
    let blobs = dir.path().join("blobs");
    fs::create_dir(&blobs).unwrap();
    fs::rename(&file, blobs.join(digits)).unwrap();
    std::os::unix::fs::symlink(blobs.join(digits), &file).unwrap();
    let linked = checked();
    assert!(linked.damage.is_none() && matches!(linked.method, Method::Sha256 { place } if place.contains("blob")));
    let mut bytes = bytes;
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(blobs.join(digits), bytes).unwrap();
    assert!(matches!(checked().damage, Some(Damage::Differs { expected, .. }) if expected == digits));
}

#[test]
fn what_cannot_be_read_is_told_with_its_place() {
    let bytes = safetensors(r#"{"one":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 8);
    let file = MemoryFile { fails_from: Some(bytes.len() as u64 - 1), ..MemoryFile::new(bytes) };
    let catalog = Catalog::from_files(vec![file.shared()]).unwrap();
    let checked = verify(&catalog, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let Some(Damage::Unreadable(faults)) = &checked[0].damage else { panic!("{:?}", checked[0].damage) };
    assert!(faults[0].to_string().contains("on fire"), "{}", faults[0]);
    assert!(verify(&catalog, &mut |_, _| ControlFlow::Break(())).is_err());
}
