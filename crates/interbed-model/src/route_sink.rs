//! Defines the receiver that a pass tells through which experts tokens go.

/// Receives the experts that a forward pass chooses for each row. The pass reports all rows of a mixture layer before
/// it goes on to the next layer.
pub trait RouteSink: Send {
    /// Takes notice that a row goes through the experts in `row`.
    fn routed(&mut self, row: &RoutedRow<'_>);
}

/// The experts that are chosen for one row in one mixture layer.
pub struct RoutedRow<'a> {
    /// The index of the decoder layer.
    pub layer: usize,
    /// The token's position in its sequence.
    pub position: usize,
    /// Whether the token belongs to the prompt.
    pub of_prompt: bool,
    /// The numbers of the chosen experts, best first.
    pub experts: &'a [u32],
    /// The factor for the result of each expert in `experts`.
    pub weights: &'a [f32],
    /// A function that says whether an expert, given by its number, was in memory before the layer started to load
    /// experts.
    pub held: &'a dyn Fn(u32) -> bool,
}
