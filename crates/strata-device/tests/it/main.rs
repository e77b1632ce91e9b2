//! Integration tests of strata-device, in one binary.

mod shaders;
mod vulkan;
