//! Derives the planners' settings from model and machine. This is pure arithmetic.

use interbed_weights::window::{Credits, Phase, Reach, ResidentConfig, RingConfig};

use super::division::Division;
use super::figure::Reading;
use super::shape::Shape;

/// Number of units that one product computes with at a time, besides units that are being read. Streaming uses this
/// number too.
const UNITS_COMPUTED: usize = 8;

/// Slots take at most one part in this many of the memory for weights.
const SLOT_SHARE: u64 = 16;

/// Holds the settings of the policies `resident` and `ring`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    /// Way in which the disk is read.
    pub reading: Reading,
    /// Bytes of the bands that matrices are cut into.
    pub band_bytes: usize,
    /// Settings of the policy `resident` in host memory.
    pub host: ResidentConfig,
    /// Settings of the policy `resident` in device memory.
    pub device: ResidentConfig,
    /// Number of copies to the device that may be in flight.
    pub credits: Credits,
    /// Settings of the policy `ring` in host memory.
    pub host_ring: RingConfig,
    /// Settings of the policy `ring` in device memory.
    pub device_ring: RingConfig,
}

impl Settings {
    /// Derives all settings. `bands` is the model cut for the policy `resident`, `ring` the model cut for the ring.
    pub fn derive(reading: Reading, band_bytes: usize, division: &Division, bands: &Shape, ring: &Shape) -> Self {
        let credits = Credits::default();
        let slots = |wished: usize, budget: u64| {
            let affordable = (budget / SLOT_SHARE).checked_div(bands.largest()).unwrap_or(0);
            let least = bands.slots_least();
            wished.max(least).min(usize::try_from(affordable).unwrap_or(usize::MAX)).max(least)
        };
        let host = slots(2 * reading.depth + 2 * UNITS_COMPUTED, division.host.units + bands.fixed_bytes());
        let device_units = division.device.as_ref().map_or(0, |device| device.units);
        let device = slots(credits.of(Phase::Prefill) + UNITS_COMPUTED, device_units);
        let device_ring = device_ring(ring, device_units, &credits);
        let ahead_layers = match (&division.device, device_ring.reach) {
            (Some(_), Reach::Units { depth_layers, .. }) => depth_layers,
            _ => 1,
        };
        Self {
            reading,
            band_bytes,
            host: ResidentConfig { stream_slots: host },
            device: ResidentConfig { stream_slots: device },
            credits,
            host_ring: host_ring(ring, division, ahead_layers, reading.depth),
            device_ring,
        }
    }

    /// Returns the offset and the length of the ring in host memory, both in layers.
    pub fn host_reach(&self) -> (usize, usize) {
        match self.host_ring.reach {
            Reach::Layers { offset_layers, capacity_layers, .. } => (offset_layers, capacity_layers),
            Reach::Units { .. } => (0, 0),
        }
    }

    /// Returns how far the ring in device memory reaches ahead, in layers and in units.
    pub fn device_reach(&self) -> (usize, usize) {
        match self.device_ring.reach {
            Reach::Units { depth_layers, ahead_units, .. } => (depth_layers, ahead_units),
            Reach::Layers { .. } => (0, 0),
        }
    }
}

/// Makes a ring in host memory of as many layers as fit; the first few lie between the pass and the ring's anchor.
/// Layers behind the pass are needed last of all, so none is kept there.
fn host_ring(ring: &Shape, division: &Division, ahead_layers: usize, depth: usize) -> RingConfig {
    let fitting = whole_in(division.host.units, ring.layer_bytes());
    // One layer is in use.
    let offset_layers = ahead_layers.min(fitting.saturating_sub(2));
    let capacity_layers = fitting.saturating_sub(1 + offset_layers).clamp(1, ring.num_layers.max(1));
    let one_tier = division.device.is_none();
    RingConfig {
        reach: Reach::Layers { offset_layers, capacity_layers, distance_layers: capacity_layers },
        layers_behind: 0,
        high_water_layers: offset_layers + capacity_layers + 2,
        low_water_layers: capacity_layers.saturating_sub(3).max(1),
        in_flight_max: if one_tier { 2 * depth } else { depth },
        queue_max: (4 * depth).max(48),
        warm_up_layers: offset_layers + capacity_layers,
        slots: one_tier,
        ..RingConfig::host(layers(ring))
    }
}

/// Makes a ring in device memory of as many groups as fit, half of them ahead: a group that is copied replaces one
/// that was used.
fn device_ring(ring: &Shape, units: u64, credits: &Credits) -> RingConfig {
    let fitting = whole_in(units, ring.layer_bytes() / 2.0).clamp(2, ring.units.len().max(2));
    let ahead_units = (fitting / 2).max(1);
    RingConfig {
        reach: Reach::Units { pair: true, depth_layers: (ahead_units / 2).max(1), ahead_units },
        layers_behind: 0,
        units_max: fitting,
        in_flight_max: credits.of(Phase::Prefill).min(fitting - 1),
        warm_up_layers: (fitting / 2).max(1),
        ..RingConfig::device(layers(ring))
    }
}

fn layers(shape: &Shape) -> Vec<u32> {
    shape.units.iter().map(|unit| unit.layer as u32).collect()
}

fn whole_in(room: u64, size: f64) -> usize {
    if size > 0.0 { (room as f64 / size) as usize } else { 0 }
}

#[cfg(test)]
mod tests {
    use interbed_kernels::DType;

    use super::super::division::{Kv, Tier};
    use super::super::shape::Cut;
    use super::super::shape::tests::shape_of;
    use super::*;

    const READING: Reading = Reading { chunk_bytes: 4 << 20, depth: 4, tried: false };

    fn settings(host: f64, device: Option<f64>) -> Settings {
        let tier = |bytes: f64| Tier { total: bytes as u64, units: bytes as u64, others: Vec::new() };
        let division = Division {
            host: tier(host),
            device: device.map(tier),
            kv: Kv { tokens: 1, tokens_max: 1, bytes: 1, streams_below: None },
        };
        let bands = shape_of("llama-3-70b", DType::BF16, Cut::Bands(4 << 20));
        let ring =
            shape_of("llama-3-70b", DType::BF16, if device.is_some() { Cut::Groups } else { Cut::Bands(4 << 20) });
        Settings::derive(READING, 4 << 20, &division, &bands, &ring)
    }

    #[test]
    fn memory_decides_how_far_the_ring_reaches() {
        // About 85 GB and 9 GB of weights.
        let small = settings(85e9, Some(9e9));
        assert_eq!((small.device_ring.units_max, small.device_reach()), (10, (2, 5)));
        assert_eq!(small.host_reach(), (2, 46));
        // More GPU memory: more groups. Less memory: fewer layers. More memory beside a slow disk: more layers.
        assert_eq!(settings(85e9, Some(18e9)).device_ring.units_max, 21);
        assert_eq!(settings(48e9, Some(9e9)).host_reach().1, 25);
        assert_eq!(settings(112e9, Some(9e9)).host_reach().1, 62);
        assert_eq!((small.host.stream_slots, small.device.stream_slots), (24, 24));
    }

    #[test]
    fn the_smallest_memory_has_settings_too() {
        for host in [1e7, 1e8, 1.8e9, 3.5e9, 6e9] {
            for device in [None, Some(2e7), Some(5e9)] {
                let settings = settings(host, device);
                let (_, capacity) = settings.host_reach();
                assert!(capacity >= 1 && settings.device_ring.units_max >= 2 && settings.host.stream_slots >= 4);
            }
        }
    }
}
