//! Code that several families share: the decoder that most of them vary, and functions that read keys.

pub(super) mod decoder;
pub(super) mod experts;
pub(super) mod habits;
pub(super) mod mamba;
pub(super) mod refusals;
pub(super) mod rope;
pub(super) mod sizes;
pub(super) mod windows;
