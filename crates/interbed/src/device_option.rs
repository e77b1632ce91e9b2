//! The `--device` option.

use std::fmt;
use std::str::FromStr;

/// The device that computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceOption {
    /// A GPU whose memory holds the weights, or the processor if there is no such GPU. GPUs that are emulated in
    /// software do not count.
    Auto,
    /// The processor.
    #[default]
    Cpu,
    /// The GPU with this number in `interbed devices`.
    Vulkan(usize),
}

impl FromStr for DeviceOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix("vulkan:").and_then(|number| number.parse().ok());
        match (text, number) {
            ("auto", _) => Ok(Self::Auto),
            ("cpu", _) => Ok(Self::Cpu),
            ("vulkan", _) => Ok(Self::Vulkan(0)),
            (_, Some(number)) => Ok(Self::Vulkan(number)),
            _ => Err("write auto, cpu, or vulkan:N with a number that `interbed devices` lists".into()),
        }
    }
}

impl fmt::Display for DeviceOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Vulkan(number) => write!(f, "vulkan:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_written_as_they_are_listed() {
        for (text, device) in [
            ("auto", DeviceOption::Auto),
            ("cpu", DeviceOption::Cpu),
            ("vulkan:0", DeviceOption::Vulkan(0)),
            ("vulkan:12", DeviceOption::Vulkan(12)),
        ] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        assert_eq!("vulkan".parse(), Ok(DeviceOption::Vulkan(0)));
        for bad in ["", "gpu", "vulkan:", "vulkan:-1", "cuda:0", "vulkan:x"] {
            assert!(bad.parse::<DeviceOption>().unwrap_err().contains("interbed devices"), "{bad}");
        }
    }
}
