//! What a GPU tells of itself: times, bytes, rates.

use std::time::{Duration, Instant};

use interbed_device::CopyRates;

use super::*;

#[test]
fn batches_have_times_that_the_host_has_seen_pass() {
    let Some(gpu) = gpu() else { return };
    let mut bench = Bench::new(&gpu);
    bench.device.note_times().unwrap();
    let begin = Instant::now();
    let mut seen = Vec::new();
    for _ in 0..5 {
        bench.area = TensorArea::default();
        let x = bench.tensor(&[1.0; 100_000]);
        for _ in 0..4 {
            bench.run(Command::Scale { x, by: 0.5 });
        }
        assert_eq!(bench.get(x)[0], 1.0 / 16.0);
        let now = Instant::now();
        for event in bench.device.take_times().unwrap() {
            assert!(event.start >= begin && event.start <= event.end && event.end <= now, "{event:?}");
            assert!(event.operations > 0, "{event:?}");
            seen.push(event);
        }
    }
    for queue in [Queue::Upload, Queue::Compute, Queue::Download] {
        let own: Vec<_> = seen.iter().filter(|event| event.queue == queue).collect();
        assert_eq!(own.len(), 5, "{queue:?}: {seen:?}");
        assert!(own.windows(2).all(|pair| pair[0].end <= pair[1].start), "{queue:?}: {own:?}");
        assert!(own.iter().map(|event| event.end - event.start).sum::<Duration>() > Duration::ZERO);
    }
}

#[test]
fn bytes_over_the_link_are_counted() {
    let Some(gpu) = gpu() else { return };
    let mut bench = Bench::new(&gpu);
    let before = bench.device.stats().unwrap();
    let x = bench.tensor(&[1.0; 1000]);
    bench.get(x);
    bench.weights(DType::F32, 10, 100, &[0; 4000], true);
    let now = bench.device.stats().unwrap();
    assert_eq!(now.bytes_to_device - before.bytes_to_device, 8000);
    assert_eq!(now.bytes_to_host - before.bytes_to_host, 4000);
    assert!(now.memory_used.0 >= before.memory_used.0 + 4000 && now.memory_used.0 <= now.memory_budget.0);
    assert!(!now.name.is_empty() && now.memory_budget == Bytes(1 << 30));
}

#[test]
fn copies_have_rates() {
    let Some(gpu) = gpu() else { return };
    let CopyRates { device, to_device, to_host } = CopyRates::measure(&gpu, 1 << 20).unwrap();
    for rate in [device, to_device, to_host] {
        // Between a floppy disk and what no memory does.
        assert!(rate > 1e5 && rate < 1e15, "{rate}");
    }
    assert!(CopyRates::measure(&gpu, 1 << 30).is_err(), "more than the budget");
}
