//! Tests of traces as files: what is written is read, and what is wrong is named.

use std::path::Path;

use interbed_weights::experts::ArenaShape;

use crate::routing::head::{COLUMNS, LayerBytes, RoutingHead};
use crate::routing::{Routing, RoutingRow, RoutingWriter};

fn head() -> RoutingHead {
    let layer = |layer, expert_bytes| LayerBytes { layer, expert_bytes, dense_bytes: 7 };
    RoutingHead {
        model: "small.gguf".into(),
        arch: "qwen3moe".into(),
        layers: 3,
        experts: 8,
        top_k: 2,
        layer_bytes: vec![layer(1, 100), layer(2, 80)],
    }
}

/// Writes a prompt of three tokens, layer after layer, and then `generated` tokens.
fn written(generated: u32) -> String {
    let mut writer = RoutingWriter::new(Vec::new(), &head()).unwrap();
    let row = |prompt, step, layer, slot| RoutingRow {
        turn: 0,
        prompt,
        step,
        layer,
        slot,
        expert: (step + layer + 3 * slot) % 8,
        weight: 0.25,
        held: slot == 0,
        read_bytes: if slot == 0 { 0 } else { 100 },
    };
    for (layer, step, slot) in
        [1, 2].into_iter().flat_map(|layer| (0..3).flat_map(move |step| [(layer, step, 0), (layer, step, 1)]))
    {
        writer.write(&row(true, step, layer, slot)).unwrap();
    }
    for (step, layer, slot) in
        (3..3 + generated).flat_map(|step| [(step, 1, 0), (step, 1, 1), (step, 2, 0), (step, 2, 1)])
    {
        writer.write(&row(false, step, layer, slot)).unwrap();
    }
    String::from_utf8(writer.finish().unwrap()).unwrap()
}

fn read(text: &str) -> Result<(RoutingHead, Routing), String> {
    Routing::read_lines(text.as_bytes(), Path::new("t.csv"), |_| ()).map_err(|error| error.to_string())
}

#[test]
fn what_is_written_is_read() {
    let (told, routing) = read(&written(4)).unwrap();
    assert_eq!(told, head());
    assert_eq!(*routing.shape(), ArenaShape::new(vec![100, 80], 8, 2).unwrap());
    let kinds: Vec<(bool, u32)> = routing.passes().iter().map(|pass| (pass.prompt, pass.tokens)).collect();
    assert_eq!(kinds, [(true, 3), (false, 1), (false, 1), (false, 1), (false, 1)]);
    // Steps 0 to 2 of layer 1 use 1 and 4, 2 and 5, 3 and 6.
    assert_eq!(routing.passes()[0].visits[0].wanted, [1, 2, 3, 4, 5, 6].map(|expert| (expert, 1)));
    // Step 3 of layer 2, which is the second with experts, uses 5 and 0.
    assert_eq!(
        (routing.passes()[1].visits[1].layer, &routing.passes()[1].visits[1].wanted[..]),
        (1, &[(0, 1), (5, 1)][..])
    );
    assert_eq!(routing.generated().passes(), &routing.passes()[1..]);
}

#[test]
fn wrong_lines_are_named() {
    let good = written(2);
    let last = good.lines().count();
    let with = |row: &str| format!("{good}{row}\n");
    let cases = [
        (with("0,1,4,2,0,1,0.5,1"), "expected 9 fields, got 8"),
        (with("0,1,5,1,0,8,0.5,1,0"), "expert: expected a number from 0 to 7, got \"8\""),
        (with("0,1,5,0,0,1,0.5,1,0"), "no expert_bytes of layer 0"),
        (with("0,1,5,1,2,1,0.5,1,0"), "slot: expected a number from 0 to 1"),
        (with("0,2,5,1,0,1,0.5,1,0"), "phase: expected a number from 0 to 1"),
        (with("0,1,5,1,0,1,heavy,1,0"), "weight: expected a number"),
        (with("0,1,5,1,0,-1,0.5,1,0"), "expert: expected a number"),
        (with("0,1,3,1,0,1,0.5,1,0"), "comes after a later one"),
        (with("0,0,9,1,0,1,0.5,1,0"), "comes after a later one"),
        (with("# layer=9 expert_bytes=3"), "a line with # among the rows"),
        (with(&format!("0,1,5,1,0,1,0.5,1,0{}", " ".repeat(5000))), "longer than 4096 bytes"),
    ];
    for (text, problem) in cases {
        let told = read(&text).unwrap_err();
        assert!(told.contains(&format!("line {} of t.csv: ", last + 1)) && told.contains(problem), "{told}");
    }
    let again = with("0,1,5,1,0,1,0.5,1,0\n0,1,5,2,0,1,0.5,1,0\n0,1,5,1,1,2,0.5,1,0");
    assert!(read(&again).unwrap_err().contains("step 5 comes to a layer again"));
    let twice = with("0,1,5,1,0,1,0.5,1,0\n0,1,5,1,1,1,0.5,1,0");
    assert!(read(&twice).unwrap_err().contains(&format!("line {} of t.csv: ", last + 2)));
}

#[test]
fn incomplete_traces_are_refused() {
    for (text, problem) in [
        (String::new(), "no line with the names of the columns"),
        (written(0), "no generated token"),
        (format!("{COLUMNS}\n"), "line 1 of t.csv: no line above"),
        ("# route_trace v1\nturn,step\n".into(), "line 2 of t.csv: expected the columns"),
        (written(1).replace("# layer=1 ", "# layer=2 "), "does not come after the one above it"),
        (written(1).replace("n_expert=8", "n_expert=many"), "n_expert: expected a number"),
        (written(1).replace("expert_bytes=100", "expert_bytes=4000000000000000000"), "expert_bytes: expected a number"),
        (written(1).replace("route_trace v1", "route_trace v9"), "line 1 of t.csv: it is of version \"v9\""),
    ] {
        let told = read(&text).unwrap_err();
        assert!(told.contains(problem), "{told}");
    }
}

#[test]
fn names_that_would_break_the_preamble_are_refused() {
    assert!(RoutingWriter::new(Vec::new(), &RoutingHead { model: "a b".into(), ..head() }).is_err());
}
