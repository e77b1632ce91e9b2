//! Defines the receiver that a pass tells through which experts tokens go.

/// A receiver that is told of each row in each mixture layer of a pass, in the order of the layers.
pub trait RouteSink: Send {
    /// Takes notice that a row goes through the experts in `row`.
    fn routed(&mut self, row: &RoutedRow<'_>);
}

/// The experts of one row in one layer.
pub struct RoutedRow<'a> {
    /// The index of the decoder layer.
    pub layer: usize,
    /// The token's position in its sequence.
    pub position: usize,
    /// Whether the token belongs to the prompt.
    pub of_prompt: bool,
    /// The experts of the row, best first.
    pub experts: &'a [u32],
    /// The factors by which the results of the experts are multiplied.
    pub weights: &'a [f32],
    /// Returns whether an expert was in memory when the layer began.
    pub held: &'a dyn Fn(u32) -> bool,
}
