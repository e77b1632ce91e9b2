//! Lines above a trace's table, which describe the model.

/// Holds what a routing trace says of its model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingHead {
    /// File or name of the model, without white space.
    pub model: String,
    /// Architecture of the model, without white space.
    pub arch: String,
    /// Number of all layers, including layers without experts.
    pub layers: u32,
    /// Number of experts in a layer.
    pub experts: u32,
    /// Number of experts that a token uses in a layer.
    pub top_k: u32,
    /// Bytes of each layer that has experts, ascending by layer.
    pub layer_bytes: Vec<LayerBytes>,
}

/// Holds the bytes of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerBytes {
    /// Number of the layer among all layers.
    pub layer: u32,
    /// Bytes of each expert of the layer.
    pub expert_bytes: u64,
    /// Bytes of the layer's other weights.
    pub dense_bytes: u64,
}

/// Name of the format in the first line of a routing trace, after a #. The version of the layout follows the name.
pub(super) const KIND: &str = "route_trace";
pub(super) const VERSION: &str = "v1";

/// Names of the columns.
pub(super) const COLUMNS: &str = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes";
