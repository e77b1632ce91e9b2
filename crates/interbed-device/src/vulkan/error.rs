//! Failures of a GPU.

use std::sync::Arc;

use ash::vk;
use interbed_kernels::DType;
use thiserror::Error;

use crate::{AllocError, Bytes};

/// The reasons for which a GPU cannot do what was asked.
#[derive(Debug, Clone, Error)]
pub enum GpuError {
    /// This machine has no Vulkan.
    #[error("there is no Vulkan here ({why}); install the Vulkan loader (Debian: libvulkan1) and your GPU's driver")]
    NoVulkan {
        /// The system's message.
        why: String,
    },
    /// There is no such GPU.
    #[error("there is no GPU number {number}; `interbed devices` lists those there are")]
    NotFound {
        /// The number that was asked for.
        number: usize,
    },
    /// The GPU or its driver lacks something that all kernels need.
    #[error(
        "{gpu} lacks {missing}, which Interbed's kernels need; a newer driver may have it, or compute on the processor"
    )]
    Lacks {
        /// The GPU's name.
        gpu: String,
        /// The feature that the GPU lacks.
        missing: &'static str,
    },
    /// The GPU has no dot products of bytes.
    #[error(
        "{gpu} has no integer dot products, or its driver does not offer them; leave out --gpu-products integer, and \
             products are computed in f32"
    )]
    NoDotProducts {
        /// The GPU's name.
        gpu: String,
    },
    /// A model that the kernels are not made for.
    #[error(
        "heads of {head_dim} numbers cannot be computed on a GPU, whose kernels take four at a time; the processor can"
    )]
    Heads {
        /// Numbers of a head.
        head_dim: usize,
    },
    /// Weights of a type that there are no kernels for.
    #[error(
        "weights in {dtype} cannot be computed on a GPU yet: leave out --device, and the processor computes them, or \
             choose a file in another type, such as Q4_K"
    )]
    WeightType {
        /// Type of the weights.
        dtype: DType,
    },
    /// A pass of more tokens than kernels take.
    #[error("a pass has more tokens than a GPU's kernels take at once; lower --max-num-batched-tokens")]
    TooManyTokens,
    /// The GPU's memory, or the part of it that Interbed may use, is too small.
    #[error(
        "the GPU has no {wanted} left of the {budget} that it may use, and {used} are in use; raise --gpu-memory, or \
             lower --max-model-len, --max-num-batched-tokens or --kv-memory"
    )]
    OutOfMemory {
        /// The bytes that were asked for.
        wanted: Bytes,
        /// The bytes that may be used.
        budget: Bytes,
        /// The bytes that are in use.
        used: Bytes,
    },
    /// The driver has no memory of the GPU's left, although Interbed's budget is not used up.
    #[error(
        "the GPU's driver could not {what}, for the GPU has no memory left; end other programs that use it, or lower \
             --gpu-memory"
    )]
    DeviceMemory {
        /// The use of the memory.
        what: &'static str,
    },
    /// The driver has no host memory left.
    #[error(
        "the GPU's driver could not {what}, for the system has no memory left for it; end other programs, or lower \
             --memory"
    )]
    HostMemory {
        /// The use of the memory.
        what: &'static str,
    },
    /// The GPU stopped.
    #[error("the GPU was lost while it computed; its driver has more in the system's log. Start Interbed again")]
    Lost,
    /// The driver refused an earlier submission, which therefore never ends.
    #[error("the GPU's driver refused what this depends on; the system's log may say why. Start Interbed again")]
    Dropped,
    /// The system has no memory left for the host memory that the GPU uses.
    #[error(transparent)]
    Host(#[from] Arc<AllocError>),
    /// Products that the host was to compute for the GPU.
    #[error("the host could not compute what the GPU waits for; the log may say why. Start Interbed again")]
    HostFailed,
    /// The driver refused for another reason.
    #[error("the GPU's driver refused to {what}: {source}")]
    Refused {
        /// The operation that the driver was asked for.
        what: &'static str,
        /// The driver's answer.
        source: vk::Result,
    },
}

impl GpuError {
    /// Returns whether the GPU's memory, or the part that may be used, is taken.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::DeviceMemory { .. })
    }

    /// Returns the error of a call that was to do `what`.
    pub(super) fn of(what: &'static str) -> impl Fn(vk::Result) -> Self {
        move |source| match source {
            vk::Result::ERROR_DEVICE_LOST => Self::Lost,
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => Self::DeviceMemory { what },
            vk::Result::ERROR_OUT_OF_HOST_MEMORY => Self::HostMemory { what },
            source => Self::Refused { what, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_memory_is_missing_is_told_from_what_the_driver_says() {
        let error = GpuError::of("make a buffer")(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
        assert!(matches!(error, GpuError::DeviceMemory { .. }) && error.to_string().contains("lower --gpu-memory"));
        let error = GpuError::of("make a buffer")(vk::Result::ERROR_OUT_OF_HOST_MEMORY);
        assert!(matches!(error, GpuError::HostMemory { .. }) && !error.to_string().contains("--gpu-memory"));
    }
}
