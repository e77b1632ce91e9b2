//! Defines the receiver that a pass tells through which experts tokens go.

/// A receiver for the chosen experts of each row in each mixture layer of a forward pass, in the order of the layers.
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
