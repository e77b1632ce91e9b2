//! Integration tests of interbed-device, in one binary.

mod best;
mod devices;
mod groups;
mod shaders;
mod short_convolution;
mod states;
mod vulkan;
mod windows;
