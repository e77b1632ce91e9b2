//! Who wants to know which experts tokens go through.

/// Is told of each row of each mixture layer of a pass, in the order of the layers.
pub trait RouteSink: Send {
    /// A row goes through these experts.
    fn routed(&mut self, row: &RoutedRow<'_>);
}

/// The experts of one row in one layer.
pub struct RoutedRow<'a> {
    /// The decoder layer.
    pub layer: usize,
    /// The token's position in its sequence.
    pub position: usize,
    /// Whether it is one of a prompt's tokens.
    pub of_prompt: bool,
    /// Its experts, best first.
    pub experts: &'a [u32],
    /// What their results are multiplied by.
    pub weights: &'a [f32],
    /// Whether an expert was in memory when the layer began.
    pub held: &'a dyn Fn(u32) -> bool,
}
