//! The greatest numbers of rows, on every device: the same as sorting gives.

use interbed_device::{BEST_MAX, Command, Device, PassNeeds, Queue, TensorArea};
use interbed_kernels::{BlockGroups, KvDType, KvLayout};

use crate::devices::devices;

/// Numbers that all tensors of a test have together.
const CAPACITY: usize = 1 << 20;

/// The devices that there are.
fn all_devices() -> Vec<(String, Box<dyn Device>)> {
    let mut tensors = TensorArea::default();
    tensors.take(CAPACITY);
    let needs = PassNeeds { tensors, best_width: 100_003, ..PassNeeds::default() };
    devices(&needs, &BlockGroups::new(KvLayout::new(4, KvDType::F32, []), 0))
}

/// What a device leaves of these rows.
fn best(device: &mut dyn Device, rows: &[f32], width: usize, count: usize) -> Vec<f32> {
    let mut area = TensorArea::default();
    let (x, out) = (area.take(rows.len()), area.take(rows.len() / width * count * 2));
    let values = |to: &mut [f32]| to.copy_from_slice(rows);
    let filled = device.submit(Queue::Upload, &[Command::Fill { out: x, values: &values }], &[]).unwrap();
    let found = device.submit(Queue::Compute, &[Command::Best { x, width, count, out }], &[filled]).unwrap();
    let token = device.submit(Queue::Download, &[Command::Download { from: out }], &[found]).unwrap();
    device.complete(token).unwrap();
    device.downloaded(out).unwrap().to_vec()
}

/// The same by sorting.
fn sorted(row: &[f32], count: usize) -> Vec<[f32; 2]> {
    let mut all: Vec<[f32; 2]> = row.iter().enumerate().map(|(place, &number)| [place as f32, number + 0.0]).collect();
    all.sort_by(|a, b| {
        b[1].is_nan().cmp(&a[1].is_nan()).then(b[1].partial_cmp(&a[1]).unwrap_or(a[1].total_cmp(&a[1])))
    });
    all.truncate(count);
    all
}

fn check(rows: &[f32], width: usize, count: usize) {
    for (name, mut device) in all_devices() {
        let got = best(&mut *device, rows, width, count);
        let (got, _) = got.as_chunks::<2>();
        for (row, (got, numbers)) in got.chunks(count).zip(rows.chunks(width)).enumerate() {
            for (at, (got, want)) in got.iter().zip(sorted(numbers, count)).enumerate() {
                let same = got[1].to_bits() == want[1].to_bits() || got[1].is_nan() && want[1].is_nan();
                // Which of several NaN comes first does not matter.
                let same = same && (got[0] == want[0] || got[1].is_nan());
                assert!(same, "{name}, {count} of {width}, row {row}: [{at}] is {got:?}, not {want:?}");
            }
        }
    }
}

/// A number from a seed that changes.
fn next(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as u32
}

#[test]
fn the_greatest_numbers_are_found_in_order() {
    let mut state = 1;
    // Rows of one part, of several, and of parts that leave more than one part takes.
    for (rows, width, count) in [
        (1, 1, 1),
        (3, 7, 7),
        (5, 100, BEST_MAX),
        (4, 2048, 3),
        (3, 2049, BEST_MAX),
        (1, 100_003, 1),
        (2, 70_000, BEST_MAX),
        (64, 4100, 21),
    ] {
        let numbers: Vec<f32> =
            (0..rows * width).map(|_| (next(&mut state) as f32 / 2f32.powi(30) - 1.0) * 40.0).collect();
        check(&numbers, width, count);
        // Few values: many are equal.
        let numbers: Vec<f32> = numbers.iter().map(|number| (number / 8.0).round()).collect();
        check(&numbers, width, count);
    }
}

#[test]
fn infinities_zeros_and_nan_have_their_places() {
    let mut state = 2;
    for width in [40, 5000] {
        for values in [
            &[f32::NEG_INFINITY, f32::INFINITY, 0.0, -0.0, 1e-45, -1e-45][..],
            &[f32::NEG_INFINITY][..],
            &[f32::MAX, f32::MIN, f32::INFINITY][..],
            &[-0.0, 0.0][..],
        ] {
            let row: Vec<f32> = (0..width).map(|_| values[next(&mut state) as usize % values.len()]).collect();
            check(&row, width, 30);
            for nan in [f32::NAN, -f32::NAN] {
                let mut row = row.clone();
                row[width * 3 / 4] = nan;
                check(&row, width, 1);
                check(&row, width, 30);
            }
        }
    }
}
