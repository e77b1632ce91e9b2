//! Tests caches after crashes of the machine, and listings with wrong digests or sizes.

use std::fs;
use std::path::Path;

use interbed_hub::HubProblem;
use interbed_hub::testing::Mischief;

use crate::place::{Place, WEIGHTS, fetch, named, open, problem};

/// Changes one byte of a file, but not its length.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[0] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn small_files_that_were_damaged_are_fetched_again() {
    let place = Place::new();
    place.add("tokenizer.json", r#"{"model": {}}"#);
    place.fetches();
    let config = place.blob_of("config.json");
    damage(&config);
    place.hub.forget();
    place.fetches();
    assert_eq!(fs::read_to_string(&config).unwrap(), "{}");
    assert_eq!((place.asked_for("config.json"), place.asked_for("tokenizer.json")), (1, 0));

    // A damaged file is also found if its link is missing, and where the file system has no links.
    damage(&config);
    let snapshot = open(&place.settings()).find(&named("org/name")).unwrap().folder();
    fs::remove_file(snapshot.join("config.json")).unwrap();
    place.fetches();
    assert_eq!(fs::read_to_string(&config).unwrap(), "{}");
    fs::remove_file(snapshot.join("config.json")).unwrap();
    fs::write(snapshot.join("config.json"), "[]").unwrap();
    place.fetches();
    assert_eq!(fs::read_to_string(snapshot.join("config.json")).unwrap(), "{}");
}

#[test]
fn offline_damage_is_named_with_the_file_to_remove() {
    let place = Place::new();
    place.fetches();
    let config = place.blob_of("config.json");
    damage(&config);
    let problem = problem(fetch(&place.offline(), "org/name"));
    let HubProblem::DamagedInCache { path, .. } = &problem else { panic!("{problem}") };
    assert_eq!(fs::canonicalize(path).unwrap(), fs::canonicalize(&config).unwrap());
    assert!(problem.hint().contains("remove that file") && !problem.is_of_the_network(), "{}", problem.hint());
    fs::remove_file(&config).unwrap();
    place.fetches();
    fetch(&place.offline(), "org/name").unwrap();
}

#[test]
fn an_index_that_is_none_blames_the_file_and_not_the_network() {
    let place = sharded();
    fetch(&place.settings(), "org/name").unwrap();
    let snapshot = open(&place.offline()).find(&named("org/name")).unwrap().folder();
    let index = snapshot.join("model.safetensors.index.json");
    // The file is replaced by a copy, whose name contains no digest.
    fs::remove_file(&index).unwrap();
    fs::write(&index, "{").unwrap();
    let problem = problem(fetch(&place.offline(), "org/name"));
    assert!(matches!(&problem, HubProblem::DamagedInCache { path, .. } if *path == index), "{problem}");
    // Online, the file is downloaded again.
    fetch(&place.settings(), "org/name").unwrap();
    fetch(&place.offline(), "org/name").unwrap();
}

/// Creates a model with two shards.
pub fn sharded() -> Place {
    let place = Place::empty();
    place.add("config.json", "{}");
    place.add("model.safetensors.index.json", r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#);
    place.add_weights("a.safetensors", 1000);
    place.add_weights("b.safetensors", 2000);
    place
}

#[test]
fn what_is_here_outlives_listings_that_lie() {
    let place = Place::new();
    place.fetches();
    place.hub.does(Mischief { lengthens: Some(("model.safetensors".to_owned(), 1)), ..Mischief::default() });
    let text = place.fetch().unwrap_err().to_string();
    assert!(text.contains("in the listing"), "{text}");
    assert_eq!(fs::metadata(place.blob()).unwrap().len(), WEIGHTS);
    place.hub.does(Mischief::default());
    place.hub.forget();
    place.fetch().unwrap();
    assert_eq!(place.hub.sent("/blob/"), 0);
}
