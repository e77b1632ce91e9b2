use super::*;
use crate::Bytes;

/// Returns the first GPU that kernels run on, if there is any, or if there must be one.
fn gpu() -> Option<Arc<Gpu>> {
    let found = Gpu::first(Bytes(1 << 24));
    assert!(found.is_ok() || std::env::var_os("INTERBED_REQUIRE_VULKAN").is_none(), "{found:?}");
    found.ok()
}

#[test]
fn what_was_refused_is_never_done() {
    let Some(gpu) = gpu() else { return };
    let mut queue = GpuQueue::new(&gpu, false).unwrap();
    queue.begin(1, Vec::new()).unwrap();
    queue.wait(1).unwrap();
    queue.begin(2, Vec::new()).unwrap();
    queue.begin(3, Vec::new()).unwrap();
    queue.refuses = true;
    assert!(queue.hand_over().is_err());
    queue.refuses = false;
    // Submission 4 would lift the counter beyond those that were lost.
    assert!(queue.begin(4, Vec::new()).and_then(|()| queue.wait(4)).is_err());
    for lost in [2, 3, 4] {
        assert!(queue.is_done(lost).is_err() && queue.hand_over_to(lost).is_err() && queue.wait(lost).is_err());
    }
    assert!(queue.settle().is_err());
}

#[test]
fn what_computes_much_is_handed_over() {
    let Some(gpu) = gpu() else { return };
    let mut queue = GpuQueue::new(&gpu, false).unwrap();
    for (number, is_handed) in [(1, false), (2, false), (3, true), (4, false)] {
        queue.begin(number, Vec::new()).unwrap();
        queue.operation(&[]);
        queue.count_multiply_adds(MULTIPLY_ADDS_MAX / 3 + 1);
        queue.end().unwrap();
        assert_eq!(queue.open.is_none(), is_handed, "{number}");
    }
}
