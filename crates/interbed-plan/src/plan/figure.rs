//! Figures of a machine, each with its source.

/// Tells where a figure comes from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Origin {
    /// The user gave the figure with this flag.
    Given(&'static str),
    /// The figure was measured on this machine just now, under these circumstances.
    Measured(String),
    /// The figure was neither given nor measured; the text tells why it has this value.
    Assumed(String),
}

/// Holds a figure and its source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figure {
    /// Value in bytes, or in bytes or operations per second.
    pub value: f64,
    pub source: Origin,
}

/// Tells how the disk is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Reading {
    /// Number of bytes in one read.
    pub chunk_bytes: usize,
    /// Number of reads in flight at a time.
    pub depth: usize,
    /// Whether the disk was tried to find these numbers.
    pub tried: bool,
}
