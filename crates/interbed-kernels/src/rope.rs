//! Computes the rotary position embedding.

/// The way in which the two elements of a head that are rotated together are chosen. The style depends on the file
/// format, because formats may order the rows of query and key matrices differently for the same model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RopeStyle {
    /// Element `i` is rotated with element `i + half` of the rotated part, as in Hugging Face models, and in the Qwen
    /// families in GGUF files.
    #[default]
    Halves,
    /// Element `2i` is rotated with element `2i + 1`, as in the Llama-like families in GGUF files.
    Neighbours,
}

/// Rotates the beginning of each head of one token in place. The beginning has `2 * pairs` elements, and may be the
/// whole head.
///
/// - `x`: `[heads, head_dim]`
/// - `cos` and `sin`: `[pairs]` each, of the token's position, with at most `head_dim / 2` pairs
///
/// # Panics
/// Panics if the lengths disagree.
#[inline(always)]
pub fn rope(x: &mut [f32], head_dim: usize, style: RopeStyle, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    assert!(sin.len() == half && 2 * half <= head_dim && x.len().is_multiple_of(head_dim));
    for head in x.chunks_exact_mut(head_dim) {
        let head = &mut head[..2 * half];
        match style {
            RopeStyle::Halves => {
                let (low, high) = head.split_at_mut(half);
                for i in 0..half {
                    (low[i], high[i]) = turned(low[i], high[i], cos[i], sin[i]);
                }
            }
            RopeStyle::Neighbours => {
                let (pairs, _) = head.as_chunks_mut::<2>();
                for (i, [low, high]) in pairs.iter_mut().enumerate() {
                    (*low, *high) = turned(*low, *high, cos[i], sin[i]);
                }
            }
        }
    }
}

#[inline(always)]
fn turned(a: f32, b: f32, cos: f32, sin: f32) -> (f32, f32) {
    (a * cos - b * sin, b * cos + a * sin)
}
