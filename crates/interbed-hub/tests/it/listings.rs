//! Tests malformed responses of the Hub.

use interbed_hub::testing::{COMMIT, Mischief};
use interbed_hub::{ChoiceProblem, HubProblem, HubSettings};

use crate::place::{Place, fetch, problem};

#[test]
fn listings_without_end_are_refused_and_not_cut() {
    let place = Place::new();
    (0..70).for_each(|number| place.add(&format!("notes-{number}.txt"), "x"));
    place.hub.does(Mischief { page_files: 1, ..Mischief::default() });
    let problem = problem(place.fetch());
    assert!(matches!(problem, HubProblem::BadAnswer { .. }), "{problem}");
    assert!(problem.to_string().contains("more than 64 pages"), "{problem}");
}

#[test]
fn a_commit_that_was_asked_for_is_the_one_that_comes() {
    let place = Place::new();
    let pinned = format!("org/name@{COMMIT}");
    fetch(&place.settings(), &pinned).unwrap();
    place.hub.does(Mischief { sha: Some("f".repeat(40)), ..Mischief::default() });
    let problem = problem(fetch(&place.settings(), &pinned));
    assert!(matches!(problem, HubProblem::BadAnswer { .. }), "{problem}");
    assert!(problem.to_string().contains(COMMIT), "{problem}");
}

#[test]
fn weights_of_no_known_model_are_refused_before_they_are_fetched() {
    let place = Place::empty();
    place.add("adapter_config.json", "{}");
    place.add_weights("adapter_model.safetensors", 1000);
    let problem = problem(place.fetch());
    assert!(matches!(problem, HubProblem::Choice(ChoiceProblem::NoConfig)), "{problem}");
    assert!(problem.hint().contains("LoRA"), "{}", problem.hint());
    assert_eq!(place.hub.sent("/blob/"), 0);
}

#[test]
fn what_is_secret_in_an_address_is_not_told() {
    let place = Place::new();
    let endpoint = place.hub.endpoint().replace("http://", "http://user:pw-secret@");
    let settings = HubSettings { endpoint, token: None, ..place.settings() };
    assert!(!format!("{settings:?}").contains("pw-secret"), "{settings:?}");
    let missing = problem(fetch(&settings, "org/other"));
    assert!(matches!(missing, HubProblem::NotFound { .. }), "{missing}");
    let token = Some("another".to_owned());
    place.hub.does(Mischief { token, error_code: "GatedRepo", ..Mischief::default() });
    let denied = problem(fetch(&settings, "org/name"));
    assert!(matches!(denied, HubProblem::Denied { .. }), "{denied}");
    for problem in [missing, denied] {
        let all = format!("{problem} {} {problem:?}", problem.hint());
        assert!(!all.contains("pw-secret") && all.contains(&place.hub.endpoint()), "{all}");
    }
}
