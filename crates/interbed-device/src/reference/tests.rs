use std::sync::Arc;

use interbed_kernels::{
    ATTENTION_STATE, AttentionLayer, AttentionSpan, DType, KvDType, KvLayout, KvShape, STRETCH, StateLayout,
    StateShape, StateSpan,
};

use super::*;
use crate::{BandProduct, KvFrame, KvSequences, TensorArea, Weights};

/// Returns a device, and three tensors of four numbers that fill its memory.
fn device(seed: u64) -> (ReferenceDevice, [Tensor; 3]) {
    let mut area = TensorArea::default();
    let tensors = [(); 3].map(|()| area.take(4));
    let layout = KvLayout::new(2, KvDType::F32, [KvShape { num_kv_heads: 1, head_dim: 2 }]);
    let needs = PassNeeds { tensors: area, ..PassNeeds::default() };
    (ReferenceDevice::new(&needs, &BlockGroups::new(layout, 64), seed), tensors)
}

fn fill(device: &mut ReferenceDevice, queue: Queue, out: Tensor, value: f32, waits: &[Token]) -> Token {
    let values = |out: &mut [f32]| out.fill(value);
    device.submit(queue, &[Command::Fill { out, values: &values }], waits).unwrap()
}

#[test]
fn a_queue_keeps_the_order_of_what_depends_on_each_other_and_no_other() {
    let mut overtaken = 0;
    for seed in 0..50 {
        let (mut device, [a, b, c]) = device(seed);
        fill(&mut device, Queue::Compute, a, 1.0, &[]);
        fill(&mut device, Queue::Compute, b, 2.0, &[]);
        let sum = Command::Add { sum: a, branch: b, scale: 10.0 };
        let scaled = Command::Scale { x: a, by: 2.0 };
        let last = device.submit(Queue::Compute, &[sum, scaled], &[]).unwrap();
        let independent = fill(&mut device, Queue::Compute, c, 3.0, &[]);
        overtaken += usize::from(
            device.pending.iter().any(|pending| pending.number < independent.number)
                && device.pending.iter().all(|pending| pending.number != independent.number),
        );
        let down = device.submit(Queue::Download, &[Command::Download { from: a }], &[last]).unwrap();
        device.complete(down).unwrap();
        assert_eq!(device.downloaded(a).unwrap(), [42.0; 4], "seed {seed}");
    }
    assert!(overtaken > 0, "what depends on nothing is sometimes executed first");
}

#[test]
fn queues_that_use_the_same_memory_wait_for_each_other_or_are_refused() {
    let (mut device, [a, b, _]) = device(1);
    let first = fill(&mut device, Queue::Upload, a, 1.0, &[]);
    let add = || [Command::Add { sum: b, branch: a, scale: 1.0 }];
    let error = device.submit(Queue::Compute, &add(), &[]).unwrap_err();
    assert!(matches!(error, DeviceError::Unordered { first: 1, second: 2 }), "{error}");
    fill(&mut device, Queue::Compute, b, 0.0, &[]);
    let sum = device.submit(Queue::Compute, &add(), &[first]).unwrap();
    // A tensor that is yet to be read may not be overwritten either.
    let values = |out: &mut [f32]| out.fill(0.0);
    let overwrite = [Command::Fill { out: a, values: &values }];
    let error = device.submit(Queue::Upload, &overwrite, &[]).unwrap_err();
    assert!(matches!(error, DeviceError::Unordered { first: 3, .. }), "{error}");
    device.submit(Queue::Upload, &overwrite, &[sum]).unwrap();
    // A wait for a submission is also a wait for everything before it in its queue, and for what that waited for.
    let later = fill(&mut device, Queue::Compute, b, 5.0, &[]);
    device.submit(Queue::Download, &[Command::Download { from: b }], &[later]).unwrap();
}

#[test]
fn the_host_reads_what_it_waited_for() {
    for seed in 0..20 {
        let (mut device, [a, ..]) = device(seed);
        let filled = fill(&mut device, Queue::Compute, a, 7.0, &[]);
        let down = device.submit(Queue::Download, &[Command::Download { from: a }], &[filled]).unwrap();
        assert!(matches!(device.downloaded(a), Err(DeviceError::ReadTooEarly { writer: 2 })));
        device.complete(down).unwrap();
        assert_eq!(device.downloaded(a).unwrap(), [7.0; 4]);
        // Everything that the host submits later comes after what it has waited for.
        fill(&mut device, Queue::Upload, a, 8.0, &[]);
        assert_eq!(device.downloaded(a).unwrap(), [7.0; 4], "a copy is the host's own");
    }
}

#[test]
fn what_was_never_written_is_no_number() {
    let (mut device, [a, b, _]) = device(3);
    fill(&mut device, Queue::Compute, a, 1.0, &[]);
    let sum = device.submit(Queue::Compute, &[Command::Add { sum: a, branch: b, scale: 0.0 }], &[]).unwrap();
    let down = device.submit(Queue::Download, &[Command::Download { from: a }], &[sum]).unwrap();
    device.complete(down).unwrap();
    assert!(device.downloaded(a).unwrap().iter().all(|number| number.is_nan()));
}

#[test]
fn what_was_discarded_is_no_number() {
    let (mut device, [a, ..]) = device(4);
    fill(&mut device, Queue::Compute, a, 1.0, &[]);
    let discarded = device.submit(Queue::Compute, &[Command::Discard { tensor: a }], &[]).unwrap();
    let down = device.submit(Queue::Download, &[Command::Download { from: a }], &[discarded]).unwrap();
    device.complete(down).unwrap();
    assert!(device.downloaded(a).unwrap().iter().all(|number| number.is_nan()));
}

#[test]
fn attention_to_a_frame_goes_on_in_the_next() {
    let layout = KvLayout::new(64, KvDType::F32, [KvShape { num_kv_heads: 1, head_dim: 2 }]);
    let (kv, groups) = (layout.layer(0), BlockGroups::new(layout, 64));
    // Keys of all zeros weigh every position alike, so that attention is the mean of the values.
    let frame = |values: &dyn Fn(usize) -> f32| {
        let mut bytes = vec![0; STRETCH / 64 * kv.part_bytes()];
        for position in 0..STRETCH {
            let at = position / 64 * kv.part_bytes() + kv.value_offset() + position % 64 * kv.slot_bytes();
            bytes[at..at + 4].copy_from_slice(&values(position).to_le_bytes());
        }
        let len = bytes.len();
        KvFrame::new(Arc::new(bytes), len)
    };
    let frames = [frame(&|position| position as f32), frame(&|_| 3.0)];
    let layer = AttentionLayer { kv, heads: 1, scale: 1.0, window: None };
    let tables: Vec<u32> = (0..STRETCH as u32 / 64).collect();
    for seed in 0..10 {
        let mut area = TensorArea::default();
        let [q, state, out] = [2, ATTENTION_STATE, 2].map(|len| area.take(len));
        let mut device = ReferenceDevice::new(&PassNeeds { tensors: area, ..PassNeeds::default() }, &groups, seed);
        let mut last = fill(&mut device, Queue::Compute, q, 1.0, &[]);
        for (stretch, frame) in frames.iter().enumerate() {
            // The last token is that of the second frame.
            let held = stretch * STRETCH..(stretch + 1) * STRETCH;
            let whole = AttentionSpan::new(2 * STRETCH - 1, 1, 0..tables.len() as u32);
            let spans = [AttentionSpan { held, ..whole }];
            let sequences = KvSequences { spans: &spans, tables: &tables };
            let attend = Command::Attend { layer, frame: Some(frame), sequences, sinks: None, q, state, out };
            last = device.submit(Queue::Compute, &[attend], &[]).unwrap();
        }
        let down = device.submit(Queue::Download, &[Command::Download { from: out }], &[last]).unwrap();
        device.complete(down).unwrap();
        let got = device.downloaded(out).unwrap();
        let want = f32::midpoint((STRETCH - 1) as f32 / 2.0, 3.0);
        assert!((got[0] - want).abs() < 1e-2 && got[1].abs() < 1e-6, "seed {seed}: {got:?} for {want}");
    }
}

#[test]
fn weights_that_are_copied_are_used_after_the_copy_and_replaced_after_the_use() {
    let [twos, fives] = [2f32, 5.0].map(|value| {
        let mut bytes = HostBuffer::new_zeroed(16).unwrap();
        bytes.as_mut_slice().copy_from_slice(&value.to_le_bytes().repeat(4));
        Arc::new(bytes)
    });
    for seed in 0..200 {
        let (mut device, [x, y, out]) = device(seed);
        let memory = device.allocate(16).unwrap();
        let weights = Weights::new(DType::F32, 4, 1, memory.clone(), 0..16);
        let product = |out| [BandProduct { weights: &weights, rows: 0..4, bias: None, out }];
        let filled = fill(&mut device, Queue::Upload, x, 3.0, &[]);
        let [twos, fives] =
            [&twos, &fives].map(|from| [Command::CopyWeights { from, range: 0..16, to: &memory, at: 0 }]);
        let copied = device.submit(Queue::Upload, &twos, &[filled]).unwrap();
        let x = x.first(1);
        let products = product(y);
        let command = [Command::Products { x, cols: 1, products: &products, gate: None }];
        let error = device.submit(Queue::Compute, &command, &[filled]).unwrap_err();
        assert!(matches!(error, DeviceError::Unordered { .. }), "{error}");
        let used = device.submit(Queue::Compute, &command, &[copied]).unwrap();
        let error = device.submit(Queue::Upload, &fives, &[]).unwrap_err();
        assert!(matches!(error, DeviceError::Unordered { .. }), "{error}");
        let copied = device.submit(Queue::Upload, &fives, &[used]).unwrap();
        let products = product(out);
        let command = [Command::Products { x, cols: 1, products: &products, gate: None }];
        let last = device.submit(Queue::Compute, &command, &[copied]).unwrap();
        let down = [Command::Download { from: y }, Command::Download { from: out }];
        let down = device.submit(Queue::Download, &down, &[last]).unwrap();
        device.complete(down).unwrap();
        assert_eq!(device.downloaded(y).unwrap(), [6.0; 4], "seed {seed}");
        assert_eq!(device.downloaded(out).unwrap(), [15.0; 4], "seed {seed}");
    }
}

#[test]
fn blocks_are_filled_copied_read_and_given_back_in_order() {
    for seed in 0..30 {
        let (mut device, _) = device(seed);
        let bytes = |from: u8| move |block: &mut [u8]| (from..).zip(block).for_each(|(byte, to)| *to = byte);
        let len = device.block_groups().trunk().content_bytes();
        let mut read = vec![0; len];
        device.fill_block(3, 0..len, &mut bytes(1)).unwrap();
        device.submit(Queue::Compute, &[Command::CopyBlocks { copies: &[(3, 5)] }], &[]).unwrap();
        device.fill_block(3, 0..len, &mut bytes(100)).unwrap();
        for (block, from) in [(5, 1), (3, 100)] {
            let mut expected = read.clone();
            bytes(from)(&mut expected);
            device.read_block(block, 0, &mut read).unwrap();
            assert_eq!(read, expected, "seed {seed}, block {block}");
            device.read_block(block, 0, &mut read[..10]).unwrap();
            assert_eq!(read, expected, "the first bytes alone");
            device.read_block(block, 6, &mut read[..10]).unwrap();
            assert_eq!(read[..10], expected[6..16], "a part");
        }
        // Parts are filled without the others.
        device.fill_block(5, 4..12, &mut bytes(50)).unwrap();
        device.read_block(5, 0, &mut read).unwrap();
        let mut expected = vec![0; len];
        bytes(1)(&mut expected);
        bytes(50)(&mut expected[4..12]);
        assert_eq!(read, expected, "seed {seed}");
        device.resize_blocks(&[], &[5]).unwrap();
        device.read_block(5, 0, &mut read).unwrap();
        assert!(read.chunks(4).all(|number| f32::from_ne_bytes(number.try_into().unwrap()).is_nan()));
        device.prepare_blocks(0, 4);
        device.read_block(3, 0, &mut read).unwrap();
        assert!(read.chunks(4).all(|number| f32::from_ne_bytes(number.try_into().unwrap()).is_nan()));
    }
}

#[test]
fn states_are_used_in_order() {
    let shape = StateShape { rows: 1, channels: 2, ..StateShape::default() };
    let kv = KvLayout::new(2, KvDType::F32, [KvShape { num_kv_heads: 1, head_dim: 2 }]);
    let groups = BlockGroups::new(kv, 1).with(StateLayout::new([shape]), 3);
    let layer = groups.states(1).layer(0);
    let mut bytes = HostBuffer::new_zeroed(16).unwrap();
    bytes.as_mut_slice().copy_from_slice(&1f32.to_le_bytes().repeat(4));
    let weights = Weights::new(DType::F32, 2, 2, Arc::new(bytes), 0..16);
    for seed in 0..50 {
        let mut area = TensorArea::default();
        let [x, y] = [area.take(4), area.take(4)];
        let mut device = ReferenceDevice::new(&PassNeeds { tensors: area, ..PassNeeds::default() }, &groups, seed);
        let convolve = |x: Tensor, sequences: &[StateSpan], device: &mut ReferenceDevice, waits: &[Token]| {
            let command = Command::Convolve { layer, sequences, weights: &weights, bias: None, x };
            device.submit(Queue::Upload, &[command], waits)
        };
        let filled = [x, y].map(|tensor| fill(&mut device, Queue::Upload, tensor, 1.0, &[]));
        let one = [StateSpan { tokens: 2, from: None, to: 1, stored_after: 2 }];
        let first = convolve(x, &one, &mut device, &filled).unwrap();
        let copy = [Command::CopyBlocks { copies: &[(1, 2)] }];
        let error = device.submit(Queue::Compute, &copy, &[]).unwrap_err();
        assert!(matches!(error, DeviceError::Unordered { .. }), "{error}");
        let copied = device.submit(Queue::Compute, &copy, &[first]).unwrap();
        let next = [StateSpan { tokens: 2, from: Some(2), to: 2, stored_after: 2 }];
        let error = convolve(y, &next, &mut device, &[]).unwrap_err();
        assert!(matches!(error, DeviceError::Unordered { .. }), "{error}");
        let last = convolve(y, &next, &mut device, &[copied]).unwrap();
        let down = device.submit(Queue::Download, &[Command::Download { from: y }], &[last]).unwrap();
        device.complete(down).unwrap();
        // Each number sees the one before it, which for the first row is in the state.
        let want = 2.0 / (1.0 + (-2f32).exp());
        assert_eq!(device.downloaded(y).unwrap(), [want; 4], "seed {seed}");
        // What was never written is no number.
        let lost = [StateSpan { tokens: 2, from: Some(3), to: 3, stored_after: 2 }];
        let last = convolve(y, &lost, &mut device, &[]).unwrap();
        let down = device.submit(Queue::Download, &[Command::Download { from: y }], &[last]).unwrap();
        device.complete(down).unwrap();
        assert!(device.downloaded(y).unwrap()[..2].iter().all(|number| number.is_nan()), "seed {seed}");
    }
}
