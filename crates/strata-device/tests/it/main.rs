//! Integration tests of strata-device, in one binary.

mod best;
mod shaders;
mod vulkan;
