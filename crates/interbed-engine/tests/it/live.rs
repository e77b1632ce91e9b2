//! What those who watch see, and that nothing is shown to nobody.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use interbed_engine::{BlockUse, LivePlace, LiveSequence, LiveState, Watcher};

use crate::sim::{Shape, assert_idle_and_whole, collect, greedy, prompt, start};

/// Reads until a state is as wanted.
fn until(watcher: &mut Watcher, what: &str, wanted: impl Fn(&LiveState) -> bool) -> LiveState {
    let (mut state, begin) = (LiveState::default(), Instant::now());
    loop {
        if watcher.read(&mut state) && wanted(&state) {
            return state;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "never: {what}; at last {state:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn count(state: &LiveState, wanted: impl Fn(BlockUse) -> bool) -> usize {
    state.blocks.iter().filter(|&&block| wanted(block)).count()
}

#[test]
fn nothing_is_shown_to_nobody() {
    let (engine, controls) = start(Shape::default());
    let run = || (0..5).for_each(|seed| drop(collect(engine.handle().submit(greedy(prompt(seed, 20), 5)).unwrap())));
    let shown = || controls.shown.load(Ordering::SeqCst);
    // An idle engine has shown how it ended, after a while, and shows nothing more.
    let at_last = || {
        let begin = Instant::now();
        loop {
            let before = shown();
            std::thread::sleep(Duration::from_millis(300));
            if shown() == before {
                return before;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "an idle engine goes on showing itself");
        }
    };
    run();
    assert_idle_and_whole(&engine);
    assert_eq!(shown(), 0);

    // An idle engine shows itself to whoever comes.
    let mut watcher = engine.handle().watch();
    let state = until(&mut watcher, "an idle engine", |_| true);
    let kv = engine.handle().status().kv;
    assert_eq!((state.sequences.len(), state.blocks.len()), (0, kv.blocks_total));
    assert_eq!(count(&state, |block| block == BlockUse::CACHED), kv.blocks_cached);
    assert_eq!(count(&state, |block| block == BlockUse::FREE), kv.blocks_free);
    assert!(kv.blocks_cached > 0 && shown() > 0);
    at_last();
    watcher.read(&mut LiveState::default());
    assert!(!watcher.read(&mut LiveState::default()));

    // What is shown last is how it ended, however fast that was.
    run();
    assert_idle_and_whole(&engine);
    let cached = engine.handle().status().kv.blocks_cached;
    until(&mut watcher, "the end", |state| {
        state.sequences.is_empty() && count(state, |block| block == BlockUse::CACHED) == cached
    });

    let before = at_last();
    drop(watcher);
    run();
    assert_idle_and_whole(&engine);
    assert_eq!(shown(), before);
}

#[test]
fn each_sequence_is_seen_with_its_blocks() {
    let (engine, controls) = start(Shape { max_num_seqs: 3, ..Shape::default() });
    controls.close_gate();
    let mut watcher = engine.handle().watch();
    // Two that begin alike, one that does not, and one for which there is no seat.
    let common = prompt(1, 16);
    let branch = |token: u32| [&common[..], &[token; 4]].concat();
    let prompts = [branch(30), branch(31), prompt(2, 21), prompt(3, 10)];
    let first = engine.handle().submit(greedy(prompts[0].clone(), 40)).unwrap();
    // Passes that come slowly, each of them shown.
    let mut step_until = |wanted: &dyn Fn(&[LiveSequence]) -> bool| {
        for _ in 0..200 {
            controls.allow(1);
            std::thread::sleep(Duration::from_millis(110));
            let mut state = LiveState::default();
            if watcher.read(&mut state) && wanted(&state.sequences) {
                return state;
            }
        }
        panic!("it is never shown");
    };
    // Once its prefix is computed, the next one shares it.
    step_until(&|sequences| sequences.iter().any(|sequence| sequence.computed >= 20));
    let others = prompts[1..].iter().map(|prompt| engine.handle().submit(greedy(prompt.clone(), 40)).unwrap());
    let streams: Vec<_> = [first].into_iter().chain(others).collect();
    let state = step_until(&|sequences| {
        let runs = sequences.iter().filter(|sequence| sequence.place == LivePlace::Running);
        sequences.len() == 4 && runs.clone().count() == 3 && runs.clone().all(|one| one.computed >= one.prompt)
    });
    let [one, other, third, waiting] = state.sequences[..] else { panic!("{:?}", state.sequences) };
    assert_eq!((one.prompt, other.prompt, third.prompt, waiting.prompt), (20, 20, 21, 10));
    assert_eq!((waiting.place, waiting.blocks, waiting.computed), (LivePlace::Waiting, 0, 0));
    assert_eq!([one, other, third, waiting].map(|sequence| sequence.cached), [0, 16, 0, 0], "what was found");
    assert!(one.came < waiting.came && one.came.elapsed() < Duration::from_secs(600));
    let shared = count(&state, |block| block == BlockUse::owned(one.number).shared());
    assert_eq!(shared, 4, "the four blocks of what both begin with");
    let own = |number| count(&state, |block| block == BlockUse::owned(number));
    assert_eq!([own(one.number) + shared, own(other.number) + shared], [one.blocks, other.blocks]);
    assert_eq!(own(third.number), third.blocks);
    controls.open_gate();
    streams.into_iter().for_each(|stream| drop(collect(stream)));
    assert_idle_and_whole(&engine);
}
