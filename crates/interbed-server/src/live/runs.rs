//! Writes compact JSON for long lists of small numbers, as runs of equal values, and for changes between two lists.

use std::fmt::Write;

/// Writes a list as JSON: `[length, code, …]`, one pair for each run of equal values.
pub(super) fn runs<T: Copy + PartialEq>(values: &[T], code: impl Fn(T) -> u16, text: &mut String) {
    text.push('[');
    for (index, run) in values.chunk_by(|a, b| a == b).enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{}{},{}", comma(index), run.len(), code(run[0]));
    }
    text.push(']');
}

/// Writes the difference between `before` and `now`, which have equal lengths, as `[skip, length, code, …]`: the
/// number of values to skip after the last change, then the length of a run of equal new values, and their code.
/// Returns whether the lists differ.
pub(super) fn changes<T: Copy + PartialEq>(
    before: &[T],
    now: &[T],
    code: impl Fn(T) -> u16,
    text: &mut String,
) -> bool {
    text.push('[');
    let (mut at, mut written) = (0, 0);
    let mut count = 0;
    while let Some(skip) = differs(&before[at..], &now[at..]) {
        at += skip;
        let value = now[at];
        let pairs = before[at..].iter().zip(&now[at..]);
        let length = pairs.take_while(|(before, now)| **now == value && before != now).count();
        let _ = write!(text, "{}{},{length},{}", comma(count), at - written, code(value));
        at += length;
        written = at;
        count += 1;
    }
    text.push(']');
    count > 0
}

/// The number of values that are compared at once.
const STRIDE: usize = 256;

/// Returns the first index at which two lists differ. Most values are equal, so the search compares pieces of the
/// lists first.
fn differs<T: PartialEq>(before: &[T], now: &[T]) -> Option<usize> {
    let pieces = before.chunks(STRIDE).zip(now.chunks(STRIDE));
    let (piece, (before, now)) = pieces.enumerate().find(|(_, (before, now))| before != now)?;
    let within = before.iter().zip(now).position(|(before, now)| before != now)?;
    Some(piece * STRIDE + within)
}

fn comma(index: usize) -> &'static str {
    if index == 0 { "" } else { "," }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbers(text: &str) -> Vec<usize> {
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).expect("a list");
        inner.split(',').filter(|number| !number.is_empty()).map(|number| number.parse().expect("a number")).collect()
    }

    #[test]
    fn a_list_and_its_changes_read_so() {
        let write = |values: &[u16]| {
            let mut text = String::new();
            runs(values, |value| value, &mut text);
            text
        };
        assert_eq!((write(&[]), write(&[7, 7, 7, 1])), ("[]".into(), "[3,7,1,1]".into()));
        let mut text = String::new();
        assert!(changes(&[1, 1, 1, 1, 1, 1], &[1, 2, 2, 3, 1, 2], |value: u16| value, &mut text));
        assert_eq!(text, "[1,2,2,0,1,3,1,1,2]");
        text.clear();
        assert!(!changes(&[1, 1], &[1, 1], |value: u16| value, &mut text));
        assert_eq!(text, "[]");
    }

    proptest! {
        #[test]
        fn changes_turn_one_list_into_the_other(
            pairs in prop::collection::vec((0..3_u16, 0..3_u16), 0..1500),
            same in 0..1500_usize,
        ) {
            let (before, mut now): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
            let end = same.min(now.len());
            now[..end].copy_from_slice(&before[..end]);
            let mut text = String::new();
            let changed = changes(&before, &now, |value| value, &mut text);
            prop_assert_eq!(changed, before != now);
            let (mut rebuilt, mut at) = (before, 0);
            for change in numbers(&text).chunks(3) {
                at += change[0];
                rebuilt[at..at + change[1]].fill(change[2] as u16);
                at += change[1];
            }
            prop_assert_eq!(&rebuilt, &now);
            text.clear();
            runs(&now, |value| value, &mut text);
            let listed = numbers(&text);
            let whole = listed.chunks(2).flat_map(|run| std::iter::repeat_n(run[1] as u16, run[0]));
            prop_assert!(whole.eq(now.iter().copied()));
        }
    }
}
