//! Rotary position embedding.

/// Which two elements of a head are rotated together. It depends on the file format, which may order the rows of query
/// and key matrices differently for the same model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RopeStyle {
    /// Element `i` with `i + dim / 2`: Hugging Face models, and the Qwen families in GGUF files.
    #[default]
    Halves,
    /// Element `2i` with `2i + 1`: the Llama-like families in GGUF files.
    Neighbours,
}

/// Rotates each head of one token in place.
///
/// - `x`: `[heads, head_dim]`
/// - `cos`, `sin`: `[head_dim / 2]` of the token's position, one for each pair
///
/// # Panics
/// If the lengths disagree.
#[inline(always)]
pub fn rope(x: &mut [f32], style: RopeStyle, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    assert!(sin.len() == half && x.len().is_multiple_of(2 * half));
    for head in x.chunks_exact_mut(2 * half) {
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
