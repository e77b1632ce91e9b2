//! Integration tests of interbed-device, in one binary.

mod best;
mod devices;
mod groups;
mod shaders;
mod states;
mod vulkan;
mod windows;
