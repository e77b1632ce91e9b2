//! The lines above a trace's table.

/// What a routing trace says of its model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingHead {
    /// The model's file or name, without white space.
    pub model: String,
    /// Its architecture, without white space.
    pub arch: String,
    /// All layers, those without experts too.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Experts that a token uses in a layer.
    pub top_k: u32,
    /// Layers that have experts, ascending.
    pub layer_bytes: Vec<LayerBytes>,
}

/// Bytes of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerBytes {
    /// The layer's number among all layers.
    pub layer: u32,
    /// Bytes of each of its experts.
    pub expert_bytes: u64,
    /// Bytes of its other weights.
    pub dense_bytes: u64,
}

/// What a routing trace calls itself in its first line, after a #, and the version of its layout, which follows.
pub(super) const KIND: &str = "route_trace";
pub(super) const VERSION: &str = "v1";

/// The names of the columns.
pub(super) const COLUMNS: &str = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes";
