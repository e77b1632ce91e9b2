//! Merges from scores: a SentencePiece vocabulary as byte-pair encoding, as transformers' converter derives it.

use std::collections::HashMap;

/// Pieces longer than this are not split. SentencePiece makes none above 16 characters by default.
const PIECE_CHARS_MAX: usize = 128;
/// Most merges; a vocabulary of 256,000 pieces has some 600,000.
const MERGES_MAX: usize = 1 << 22;

/// A piece that can be merged from others.
pub(super) struct Piece<'a> {
    /// The piece as the vocabulary spells it.
    pub(super) text: &'a str,
    /// Rank of the piece: pieces with higher scores are merged earlier.
    pub(super) score: f32,
}

/// Returns every pair of known pieces that together make a known piece, in the order of merging: by the score of the
/// result, then by the length of the left part, then of the right part. `pieces` are in the order of their ids, which
/// `ids` holds.
///
/// # Errors
/// More merges than any vocabulary has.
pub(super) fn merges<'a>(pieces: &[Piece<'a>], ids: &HashMap<&'a str, u32>) -> Result<Vec<(&'a str, &'a str)>, String> {
    let mut all = Vec::new();
    for piece in pieces {
        let length = piece.text.chars().count();
        if !(2..=PIECE_CHARS_MAX).contains(&length) {
            continue;
        }
        let first = all.len();
        for (left_chars, (at, _)) in piece.text.char_indices().enumerate().skip(1) {
            let (left, right) = piece.text.split_at(at);
            if let (Some(&left_id), Some(&right_id)) = (ids.get(left), ids.get(right)) {
                all.push(Merge {
                    score: piece.score,
                    left_chars,
                    right_chars: length - left_chars,
                    left_id,
                    right_id,
                    left,
                    right,
                });
            }
        }
        all[first..].sort_by_key(|merge| (merge.left_id, merge.right_id));
        if all.len() > MERGES_MAX {
            return Err(format!("its vocabulary makes more than {MERGES_MAX} merges, which no real one does"));
        }
    }
    // Stable, so that what is alike stays in the order of ids.
    all.sort_by(|a, b| {
        b.score.total_cmp(&a.score).then(b.left_chars.cmp(&a.left_chars)).then(b.right_chars.cmp(&a.right_chars))
    });
    Ok(all.into_iter().map(|merge| (merge.left, merge.right)).collect())
}

struct Merge<'a> {
    score: f32,
    left_chars: usize,
    right_chars: usize,
    left_id: u32,
    right_id: u32,
    left: &'a str,
    right: &'a str,
}
