//! Tests incomplete and read-only caches.

use std::fs;

use interbed_hub::HubProblem;

use crate::damage::sharded;
use crate::place::{Place, fetch, named, open, problem};

#[test]
fn contents_that_were_removed_are_missed_only_by_who_needs_them() {
    let place = Place::empty();
    place.add_weights("m-Q4_K_M.gguf", 1000);
    place.add_weights("m-Q8_0.gguf", 2000);
    for tag in ["Q4_K_M", "Q8_0"] {
        fetch(&place.settings(), &format!("org/name:{tag}")).unwrap();
    }
    fs::remove_file(place.blob_of("m-Q4_K_M.gguf")).unwrap();
    fetch(&place.offline(), "org/name:Q8_0").unwrap();
    // Without a tag, the same file is chosen as online.
    for name in ["org/name:q4_k_m", "org/name"] {
        let problem = problem(fetch(&place.offline(), name));
        assert!(matches!(problem, HubProblem::NotCached { .. }), "{problem}");
        assert!(problem.to_string().contains("the contents of m-Q4_K_M.gguf are"), "{problem}");
    }
    let place = sharded();
    fetch(&place.settings(), "org/name").unwrap();
    for path in ["b.safetensors", "model.safetensors.index.json", "config.json"] {
        let blob = place.blob_of(path);
        let content = fs::read(&blob).unwrap();
        fs::remove_file(&blob).unwrap();
        let text = problem(fetch(&place.offline(), "org/name")).to_string();
        assert!(text.contains(&format!("the contents of {path} are")), "{text}");
        fs::write(&blob, content).unwrap();
    }
}

#[test]
fn what_is_complete_is_used_without_writing() {
    let place = sharded();
    fetch(&place.settings(), "org/name").unwrap();
    // A folder that is replaced by a file cannot be written by any user.
    let locks = place.folder.path().join(".locks");
    fs::remove_dir_all(&locks).unwrap();
    fs::write(&locks, "").unwrap();
    let refs = place.model().join("refs");
    fs::remove_dir_all(&refs).unwrap();
    fs::write(&refs, "").unwrap();
    place.hub.forget();
    let hub = open(&place.settings());
    let found = hub.find(&named("org/name")).unwrap();
    assert!(found.is_complete());
    found.settle();
    found.fetch(&|_| ()).unwrap();
    assert!(place.hub.seen().iter().all(|seen| seen.target.starts_with("/api/")), "{:?}", place.hub.seen());
}

#[test]
fn locks_that_a_file_system_lacks_are_named() {
    let source = std::io::Error::from_raw_os_error(37);
    let problem = HubProblem::File { action: "lock", path: "/nfs/.locks/a.lock".into(), source };
    assert!(problem.hint().contains("has no locks") && problem.hint().contains("HF_HOME"), "{}", problem.hint());
}
