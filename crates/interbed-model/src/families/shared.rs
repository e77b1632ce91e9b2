//! What families have in common: the decoder that most of them vary, and the readers of keys that several of them have.

pub(super) mod decoder;
pub(super) mod experts;
pub(super) mod rope;
pub(super) mod windows;
