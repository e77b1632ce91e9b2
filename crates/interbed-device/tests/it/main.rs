//! Integration tests of interbed-device, in one binary.

mod best;
mod shaders;
mod states;
mod vulkan;
