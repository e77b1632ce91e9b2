//! Tests networks that fail for a while, and servers that are busy.

use std::time::{Duration, Instant};

use interbed_hub::testing::Mischief;
use interbed_hub::{Hub, HubPatience, HubProblem};

use crate::place::{Place, SHORT, named, open, problem};

#[test]
fn waits_that_a_server_asks_for_do_not_count_as_its_answer() {
    let place = Place::new();
    place.hub.does(Mischief { busy: 1, busy_status: 429, retry_after: 1, ..Mischief::default() });
    let patience = HubPatience { answer: Duration::from_millis(500), ..SHORT };
    Hub::open_with(&place.settings(), patience).unwrap().find(&named("org/name")).unwrap();
}

#[test]
fn where_the_hub_is_busy_the_cache_is_what_there_is() {
    for busy_status in [429, 503] {
        let place = Place::new();
        let busy = || place.hub.does(Mischief { busy: 1000, busy_status, ..Mischief::default() });
        busy();
        assert!(matches!(problem(place.fetch()), HubProblem::Status { .. }));
        place.hub.does(Mischief::default());
        place.fetches();
        busy();
        place.fetches();
    }
}

/// Creates a model whose weights fit into one range.
fn one_range() -> Place {
    let place = Place::empty();
    place.add("config.json", "{}");
    place.add_weights("model.safetensors", 100_000);
    place
}

/// Downloads weights of one range from a Hub with this fault.
fn fetches_during(mischief: Mischief) {
    let place = one_range();
    let hub = open(&place.settings());
    let found = hub.find(&named("org/name")).unwrap();
    found.fetch_small().unwrap();
    place.hub.does(mischief);
    found.fetch(&|_| ()).unwrap();
    assert_eq!(std::fs::metadata(place.blob()).unwrap().len(), 100_000);
}

#[test]
fn downloads_outlive_a_network_that_is_gone_for_a_while() {
    fetches_during(Mischief { drops: 15, ..Mischief::default() });
}

#[test]
fn downloads_outlive_servers_that_are_busy_for_a_while() {
    fetches_during(Mischief { busy: 30, busy_status: 503, ..Mischief::default() });
    fetches_during(Mischief { busy: 30, busy_status: 429, ..Mischief::default() });
}

#[test]
fn servers_that_stay_busy_are_given_up_in_time() {
    let place = one_range();
    let hub = open(&place.settings());
    let found = hub.find(&named("org/name")).unwrap();
    found.fetch_small().unwrap();
    // Each response asks to wait for a second.
    place.hub.does(Mischief { busy: 1000, busy_status: 429, retry_after: 1, ..Mischief::default() });
    let begun = Instant::now();
    let problem = found.fetch(&|_| ()).unwrap_err().problem;
    assert!(matches!(problem, HubProblem::Status { status: 429, .. }), "{problem}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // A server that asks to wait for minutes gets no further request.
    place.hub.does(Mischief { busy: 1000, busy_status: 503, retry_after: 300, ..Mischief::default() });
    let problem = found.fetch(&|_| ()).unwrap_err().problem;
    assert!(matches!(problem, HubProblem::Later { status: 503, seconds: 300, .. }), "{problem}");
}
