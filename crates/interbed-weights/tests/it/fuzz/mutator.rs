//! Files that are nearly right: bytes of good ones, changed here and there.

use crate::window::rng::Rng;

/// Numbers at which sizes go wrong.
const NUMBERS: [u64; 18] = [
    0,
    1,
    2,
    7,
    8,
    31,
    32,
    63,
    255,
    4095,
    4096,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 62) + 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX,
];

/// Longest file that is made.
const BYTES_MAX: usize = 1 << 19;

/// Changes one of `corpus` in some ways, mostly in its first `head` bytes, where headers lie.
pub fn mutant(corpus: &[Vec<u8>], head: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = corpus[rng.below(corpus.len())].clone();
    for _ in 0..=rng.below(6) {
        if bytes.is_empty() {
            return bytes;
        }
        let reach = if rng.once_in(16) { bytes.len() } else { head.min(bytes.len()) };
        let at = rng.below(reach);
        change(&mut bytes, at, corpus, rng);
        bytes.truncate(BYTES_MAX);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, at: usize, corpus: &[Vec<u8>], rng: &mut Rng) {
    let number = NUMBERS[rng.below(NUMBERS.len())];
    let some = |rng: &mut Rng, most: usize| 1 + rng.below(most);
    match rng.below(10) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.next() as u8,
        2 => overwrite(bytes, at, &number.to_le_bytes()),
        3 => overwrite(bytes, at, &(number as u32).to_le_bytes()),
        // A number somewhat larger or smaller.
        4 => bytes[at] = bytes[at].wrapping_add(if rng.once_in(2) { 1 } else { 255 }),
        5 => {
            let end = (at + some(rng, 40)).min(bytes.len());
            bytes.drain(at..end);
        }
        6 => {
            let end = (at + some(rng, 64)).min(bytes.len());
            let copy = bytes[at..end].to_vec();
            let place = rng.below(bytes.len());
            bytes.splice(place..place, copy);
        }
        7 => {
            let other = &corpus[rng.below(corpus.len())];
            if !other.is_empty() {
                let from = rng.below(other.len());
                let part = other[from..(from + some(rng, 64)).min(other.len())].to_vec();
                overwrite(bytes, at, &part);
            }
        }
        8 => bytes.truncate(at),
        _ => replace_digits(bytes, at, number, rng),
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    let end = (at + with.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&with[..end - at]);
}

/// Puts another number in the place of the next one that is written in digits.
fn replace_digits(bytes: &mut Vec<u8>, at: usize, number: u64, rng: &mut Rng) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|index| at + index) else { return };
    let end = bytes[start..].iter().position(|byte| !byte.is_ascii_digit()).map_or(bytes.len(), |index| start + index);
    let text = match rng.below(4) {
        0 => format!("-{number}"),
        1 => format!("{number}e{}", rng.below(400)),
        2 => (rng.below(300)).to_string(),
        _ => number.to_string(),
    };
    bytes.splice(start..end, text.into_bytes());
}
