//! Computes the rotary position embedding.

/// The rule that pairs the elements of a head for rotation. The rule depends on the file format, because formats may
/// order the rows of query and key matrices differently for the same model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RopeStyle {
    /// Element `i` of the rotated part pairs with element `i + half`, where `half` is half the length of that part.
    /// Hugging Face models and the Qwen families in GGUF files use this rule.
    #[default]
    Halves,
    /// Element `2i` pairs with element `2i + 1`. The Llama-like families in GGUF files use this rule.
    Neighbours,
}

/// Rotates the first `2 * pairs` elements of each head of one token in place.
///
/// - `x`: `[heads, head_dim]`
/// - `cos` and `sin`: the cosines and sines of the angles at the token's position, `[pairs]` each, with at most
///   `head_dim / 2` pairs
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
