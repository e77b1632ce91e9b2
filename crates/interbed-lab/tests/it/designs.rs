//! Tests measurements of designs: that they report their figures, not how fast anything is.

use serde_json::Value;

use crate::support::{refused, succeeded};

fn lines(args: &[&str]) -> Vec<Value> {
    succeeded(args).lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

#[test]
fn layouts_of_kv_are_measured_with_the_model_that_ships() {
    // The measurement runs as many steps as the model's context has room for. It uses one thread, because others use
    // the machine too.
    let few = ["kv-layout", "--sequences", "2", "--repeat", "1", "--threads", "1", "--memory", "512M", "--json"];
    let lines = lines(&few);
    let steady = lines.iter().find(|line| line["params"]["load"] == "steady").unwrap();
    assert!(steady["params"]["steps"].as_f64() >= Some(600.0), "{steady}");
    let contexts = lines.iter().filter(|line| line["name"] == "kv_layout.decode.virtual_over_paged").count();
    assert_eq!(contexts, 1, "all that are asked for are the model's");
    refused(&[&few[..], &["--steps", "5000"]].concat(), &["--steps 5000", "give at most"]);
    refused(&["kv-beyond"], &["1024 tokens", "longer context"]);
}
