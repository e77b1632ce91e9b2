//! The `--device` option.

use std::fmt;
use std::str::FromStr;

use interbed_device::DEVICE_KINDS;

/// The device that computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceOption {
    /// A GPU whose memory holds the weights, or the processor if there is no such GPU. GPUs that are emulated in
    /// software do not count.
    Auto,
    /// The processor.
    #[default]
    Cpu,
    /// The device of this kind with this number in `interbed devices`.
    Numbered(&'static str, usize),
}

impl FromStr for DeviceOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, number) = text.split_once(':').unwrap_or((text, "0"));
        let kind = DEVICE_KINDS.iter().find(|kind| kind.name == name);
        match (text, kind, number.parse()) {
            ("auto", ..) => Ok(Self::Auto),
            ("cpu", ..) => Ok(Self::Cpu),
            (_, Some(kind), Ok(number)) => Ok(Self::Numbered(kind.name, number)),
            _ => {
                let kinds: Vec<String> = DEVICE_KINDS.iter().map(|kind| format!("{}:N", kind.name)).collect();
                Err(format!("write auto, cpu, or {} with a number that `interbed devices` lists", kinds.join(" or ")))
            }
        }
    }
}

impl fmt::Display for DeviceOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Numbered(kind, number) => write!(f, "{kind}:{number}"),
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
            ("vulkan:0", DeviceOption::Numbered("vulkan", 0)),
            ("vulkan:12", DeviceOption::Numbered("vulkan", 12)),
        ] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        assert_eq!("vulkan".parse(), Ok(DeviceOption::Numbered("vulkan", 0)));
        for bad in ["", "gpu", "vulkan:", "vulkan:-1", "cuda:0", "vulkan:x"] {
            assert!(bad.parse::<DeviceOption>().unwrap_err().contains("interbed devices"), "{bad}");
        }
    }
}
