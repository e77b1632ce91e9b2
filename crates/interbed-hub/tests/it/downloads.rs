//! Tests downloads over real sockets, from a Hub that misbehaves.

use std::fs;
use std::time::{Duration, Instant};

use interbed_hub::testing::{COMMIT, Mischief};
use interbed_hub::{HubError, HubProblem, HubSettings, RANGE_BYTES};
use interbed_io::IoError;

use crate::damage::sharded;
use crate::place::{Place, WEIGHTS, fetch, named, open, problem};

#[test]
fn everything_is_fetched_once_and_the_token_goes_to_the_hub_alone() {
    let place = Place::new();
    place.fetches();
    let seen = place.hub.seen();
    let (storage, own): (Vec<_>, Vec<_>) = seen.iter().partition(|seen| seen.on_storage);
    assert!(storage.len() >= 4 && own.len() >= 4);
    assert!(storage.iter().all(|seen| seen.authorization.is_none()), "{storage:?}");
    assert!(own.iter().all(|seen| seen.authorization.as_deref() == Some("Bearer hf_secret")), "{own:?}");
    assert_eq!(place.hub.sent("/blob/"), WEIGHTS);
    // The address that the Hub redirected to is used for the other ranges too.
    assert_eq!(own.iter().filter(|seen| seen.target.contains("model.safetensors")).count(), 1, "{own:?}");
    place.hub.forget();
    place.fetches();
    assert_eq!(place.hub.seen().len(), 2, "only asked what there is: {:?}", place.hub.seen());
}

#[test]
fn listings_of_several_pages_are_read_whole() {
    let place = Place::new();
    place.hub.does(Mischief { page_files: 1, ..Mischief::default() });
    place.fetches();
    assert_eq!(place.hub.seen().iter().filter(|seen| seen.target.contains("/tree/")).count(), 3);
}

#[test]
fn connections_that_break_are_taken_up_where_they_broke() {
    let place = Place::new();
    place.hub.does(Mischief { cuts: 7, cut_after: 100_000, ..Mischief::default() });
    place.fetches();
    let sent = place.hub.sent("/blob/");
    assert!(sent < WEIGHTS + 7 * (64 << 10) + 1, "{sent}");
}

#[test]
fn servers_that_are_busy_are_asked_again() {
    for busy_status in [429, 503] {
        let place = Place::new();
        place.hub.does(Mischief { busy: 3, busy_status, ..Mischief::default() });
        place.fetches();
    }
    let place = Place::new();
    place.hub.does(Mischief { busy: 1000, busy_status: 503, ..Mischief::default() });
    let begun = Instant::now();
    assert!(matches!(problem(place.fetch()), HubProblem::Status { status: 503, .. }));
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn servers_without_ranges_send_all() {
    let place = Place::new();
    place.hub.does(Mischief { ignores_ranges: true, ..Mischief::default() });
    place.fetches();
    // A client that has downloaded a part of the file gets all of it too.
    let place = Place::new();
    begin(&place, 2 << 20);
    place.hub.does(Mischief { ignores_ranges: true, ..Mischief::default() });
    place.fetches();
}

#[test]
fn signatures_that_run_out_are_asked_for_again() {
    let place = Place::new();
    place.hub.does(Mischief { signs_for_one: true, ..Mischief::default() });
    place.fetches();
}

/// Leaves the first bytes of the weights, like a process that was killed.
fn begin(place: &Place, bytes: u64) {
    place.fetches();
    let whole = fs::read(place.blob()).unwrap();
    fs::remove_file(place.blob()).unwrap();
    fs::write(place.blob().with_extension("incomplete"), &whole[..bytes as usize]).unwrap();
    place.hub.forget();
}

#[test]
fn what_was_fetched_is_not_fetched_again() {
    let place = Place::new();
    let have = RANGE_BYTES + 4321;
    begin(&place, have);
    place.fetches();
    assert_eq!(place.hub.sent("/blob/"), WEIGHTS - have);
    // All bytes are there, but under the name of an unfinished download.
    begin(&place, WEIGHTS);
    place.fetches();
    assert_eq!(place.hub.sent("/blob/"), 0);
}

#[test]
fn what_was_left_damaged_is_fetched_from_its_beginning() {
    let place = Place::new();
    begin(&place, 1 << 20);
    fs::write(place.blob().with_extension("incomplete"), vec![0; 1 << 20]).unwrap();
    place.fetches();
    assert_eq!(place.hub.sent("/blob/"), WEIGHTS - (1 << 20) + WEIGHTS);
    // The unfinished file is too long.
    begin(&place, WEIGHTS);
    fs::write(place.blob().with_extension("incomplete"), vec![0; WEIGHTS as usize + 1]).unwrap();
    place.fetches();
    // A complete file with another length is reported, and downloaded again.
    fs::write(place.blob(), b"short").unwrap();
    place.fetches();
}

#[test]
fn damage_is_found_and_named_and_not_kept() {
    for file in ["model.safetensors", "config.json"] {
        let place = Place::new();
        place.hub.does(Mischief { damages: Some(file.to_owned()), ..Mischief::default() });
        let error = place.fetch().unwrap_err();
        let text = error.to_string();
        let HubProblem::Damaged { file: named, expected, .. } = &error.problem else { panic!("{text}") };
        assert_eq!((named.as_str(), expected), (file, &place.hub.digest("org/name", file)));
        assert!(text.contains("org/name") && error.problem.hint().contains("run it again"), "{text}");
        let left = fs::read_dir(place.folder.path().join("models--org--name/blobs")).unwrap().flatten();
        assert!(left.map(|entry| entry.file_name()).all(|name| !name.to_string_lossy().contains(expected.as_str())));
        // Offline, no revision leads to half a model.
        assert!(!place.folder.path().join("models--org--name/refs/main").exists());
    }
}

#[test]
fn lengths_that_are_lies_are_found_before_anything_is_written() {
    for more in [1, 1 << 40] {
        let place = Place::new();
        let lengthens = Some(("model.safetensors".to_owned(), more));
        place.hub.does(Mischief { lengthens: lengthens.clone(), ..Mischief::default() });
        let text = place.fetch().unwrap_err().to_string();
        assert!(text.contains("in the listing"), "{text}");
        place.hub.does(Mischief { ignores_ranges: true, lengthens, ..Mischief::default() });
        assert!(place.fetch().unwrap_err().to_string().contains("in the listing"));
    }
    let place = Place::new();
    place.hub.does(Mischief { lengthens: Some(("model.safetensors".to_owned(), 1 << 49)), ..Mischief::default() });
    let hub = open(&place.settings());
    let found = hub.find(&named("org/name")).unwrap();
    assert!(matches!(found.check_room().unwrap_err().problem, HubProblem::NoRoom { .. }));
}

#[test]
fn what_may_not_be_read_says_what_to_do() {
    let place = Place::new();
    for error_code in ["GatedRepo", ""] {
        let token = Some("another".to_owned());
        place.hub.does(Mischief { token, error_code, ..Mischief::default() });
        let problem = problem(place.fetch());
        let HubProblem::Denied { status: 401, has_token: true, .. } = &problem else { panic!("{problem}") };
        let page = format!("{}/org/name", place.hub.endpoint());
        assert!(problem.hint().contains("licence") && problem.hint().contains(&page), "{}", problem.hint());
        let stranger = HubSettings { token: None, ..place.settings() };
        assert!(self::problem(fetch(&stranger, "org/name")).hint().contains("HF_TOKEN"));
    }
    place.hub.does(Mischief { token: Some("hf_secret".into()), ..Mischief::default() });
    place.fetches();
}

#[test]
fn what_says_which_model_it_is_comes_first_and_alone() {
    let place = Place::new();
    place.add("tokenizer.json", "[]");
    let hub = open(&place.settings());
    let found = hub.find(&named("org/name")).unwrap();
    found.fetch_config().unwrap();
    let asked = || ["config.json", "tokenizer.json", "model.safetensors"].map(|path| place.asked_for(path));
    assert_eq!(asked(), [1, 0, 0]);
    found.fetch_small().unwrap();
    assert_eq!(asked(), [1, 1, 0]);
    assert_eq!(found.index(), None);
    // An index beside a file with all weights is ignored.
    place.add("model.safetensors.index.json", r#"{"weight_map": {"x": "a.safetensors"}}"#);
    assert_eq!(hub.find(&named("org/name")).unwrap().index(), None);
    let place = sharded();
    let hub = open(&place.settings());
    let found = hub.find(&named("org/name")).unwrap();
    assert_eq!(found.index(), Some(found.folder().join("model.safetensors.index.json")));
}

#[test]
fn headers_that_may_not_be_read_say_what_to_do() {
    let place = Place::empty();
    place.add_weights("m-Q8_0.gguf", 5 << 20);
    let hub = open(&place.settings());
    let found = hub.find(&named("org/name")).unwrap();
    place.hub.does(Mischief { token: Some("another".into()), error_code: "GatedRepo", ..Mischief::default() });
    let Err(HubError { problem, .. }) = found.headers() else { panic!("it should be refused") };
    assert!(matches!(problem, HubProblem::Denied { status: 401, .. }), "{problem}");
    assert!(problem.hint().contains("licence") && problem.hint().contains("HF_TOKEN"), "{}", problem.hint());

    // The beginnings are in memory now, and later failures are still reported.
    place.hub.does(Mischief::default());
    let headers = found.headers().unwrap();
    place.hub.goes_away();
    let mut bytes = vec![0; 1 << 20];
    headers[0].read_exact_at(&mut bytes, 0).unwrap();
    let Err(IoError::Read { source, .. }) = headers[0].read_exact_at(&mut bytes, 2 << 20) else { panic!("gone") };
    let inside = source.get_ref().and_then(|inside| inside.downcast_ref());
    assert!(matches!(inside, Some(HubProblem::Unreachable { .. })), "{source}");
}

#[test]
fn what_is_not_there_is_named() {
    let place = Place::new();
    let text = fetch(&place.settings(), "org/other").unwrap_err().to_string();
    assert!(text.contains("has no model org/other"), "{text}");
    let problem = problem(fetch(&place.settings(), "org/name@v9"));
    assert!(problem.to_string().contains("revision \"v9\""), "{problem}");
    assert_eq!(problem.hint(), "there are main, refs/pr/1, v1");
    fetch(&place.settings(), "org/name@v1").unwrap();
    fetch(&place.settings(), "org/name@refs/pr/1").unwrap();
    let refs = place.folder.path().join("models--org--name/refs");
    assert_eq!(fs::read_to_string(refs.join("refs/pr/1")).unwrap(), COMMIT);
}

#[test]
fn offline_the_cache_is_what_there_is() {
    let place = Place::new();
    let offline = place.offline();
    let text = fetch(&offline, "org/name").unwrap_err().to_string();
    assert!(text.contains("not in the cache"), "{text}");
    place.fetches();
    place.hub.goes_away();
    fetch(&offline, "org/name").unwrap();
    fetch(&offline, &format!("org/name@{COMMIT}")).unwrap();
    // The cache is also used without the option when the Hub does not respond.
    place.fetch().unwrap();
    let text = fetch(&offline, "org/name@v1").unwrap_err().to_string();
    assert!(text.contains("its revision v1 is not in the cache"), "{text}");
    fs::remove_file(place.blob()).unwrap();
    let text = fetch(&offline, "org/name").unwrap_err().to_string();
    assert!(text.contains("the contents of model.safetensors are not in the cache"), "{text}");
    assert!(matches!(problem(place.fetch()), HubProblem::Unreachable { .. }));
}

#[test]
fn listings_that_lead_elsewhere_write_nothing_there() {
    let place = Place::new();
    let digest = "a".repeat(40);
    for path in ["../../../escaped", "/tmp/escaped", "a/../../escaped"] {
        let entry = format!(r#"[{{"type": "file", "oid": "{digest}", "size": 2, "path": "{path}"}}]"#);
        place.hub.does(Mischief { tree: Some(entry), ..Mischief::default() });
        assert!(matches!(problem(place.fetch()), HubProblem::Choice(_)));
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let digest = r#"[{"type": "file", "oid": "../../x", "size": 2, "path": "config.json"}]"#.to_owned();
    let huge =
        format!(r#"[{{"type": "file", "oid": "{}", "size": 18446744073709551615, "path": "a"}}]"#, "a".repeat(40));
    for tree in [deep, digest, huge, "{}".into(), "<html>".into(), String::new()] {
        place.hub.does(Mischief { tree: Some(tree), ..Mischief::default() });
        assert!(matches!(problem(place.fetch()), HubProblem::BadAnswer { .. }));
    }
    let inside: Vec<_> = fs::read_dir(place.folder.path()).unwrap().collect();
    assert!(inside.is_empty(), "{inside:?}");
}

#[test]
fn two_at_a_time_fetch_it_once() {
    let place = Place::new();
    place.hub.does(Mischief { bytes_per_second: Some(40 << 20), ..Mischief::default() });
    std::thread::scope(|scope| {
        let both = [scope.spawn(|| place.fetch()), scope.spawn(|| place.fetch())];
        both.into_iter().for_each(|one| one.join().unwrap().unwrap());
    });
    assert_eq!(place.hub.sent("/blob/"), WEIGHTS);
}
