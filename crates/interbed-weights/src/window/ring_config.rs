//! Settings of the ring policy. The defaults suit a machine with a GPU of 16 GB, 125 GB of host memory and a model of
//! 80 layers that fills both.

use super::error::WindowError;

/// Settings of a window that slides, for [`Policy::Ring`](super::Policy::Ring).
///
/// Counts are of layers or units, as their names say. A layer is a run of neighbours in the order, such as attention
/// and FFN of one layer, or a single unit. [`RingConfig::host`] and [`RingConfig::device`] are the settings of the two
/// tiers.
#[derive(Debug, Clone, PartialEq)]
pub struct RingConfig {
    /// Number of the layer to which each position of the order belongs. Neighbours with equal numbers are one layer. If
    /// the list is empty, each unit is a layer of its own.
    pub layers: Vec<u32>,
    /// Units that are fetched ahead of the pass.
    pub reach: Reach,
    /// Number of layers behind the current one that stay: 4 in the host, 2 in the device.
    pub layers_behind: usize,
    /// High water mark. Once this many layers are held, no further layer is begun until the farthest layers are
    /// evicted. The host has 65, the device has no mark.
    pub high_water_layers: usize,
    /// Low water mark. The eviction of the farthest layers stops at this many, or earlier if the rest is needed sooner.
    /// The host has 47, the device has no mark.
    pub low_water_layers: usize,
    /// Maximum number of units held, at least 2. The device has 12; the host is bounded by layers and bytes only.
    pub units_max: usize,
    /// Maximum number of loads in flight: 10 in the host, 16 in the device. The limit does not hold back loads that are
    /// waited for.
    pub in_flight_max: usize,
    /// Maximum number of load requests in the queue: 48. Further requests are refused, and are made again when the pass
    /// has moved on.
    pub queue_max: usize,
    /// Number of layers that are fetched at the start: all 50 layers of the host's window, 8 in the device.
    pub warm_up_layers: usize,
    /// Whether each unit takes a slot of the largest unit's bytes, or (if false) its own bytes.
    pub slots: bool,
}

/// Units that a ring fetches ahead of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The ring fetches whole layers in order, as in the host. The anchor lies `offset_layers` after the current layer,
    /// and the window is `capacity_layers` long from the anchor on. Layers between the current layer and the anchor
    /// stay until they have been used.
    Layers {
        /// Number of layers from the current layer to the anchor. The host has 6.
        offset_layers: usize,
        /// Number of layers in the window. The host has 50.
        capacity_layers: usize,
        /// Number of layers from the anchor on that are asked for. The host has 50.
        distance_layers: usize,
    },
    /// The ring fetches units that are related to the unit in use, as in the device.
    Units {
        /// Whether the use of a unit asks for the units that follow it in its layer, such as the FFN after attention.
        pair: bool,
        /// Number of further layers for which the counterpart of the unit is asked for. The device has 4.
        depth_layers: usize,
        /// Number of units that follow in the order and are asked for, of whatever kind. The device has 6.
        ahead_units: usize,
    },
}

impl RingConfig {
    /// Returns the settings of the host's window, which has 50 layers and begins 6 layers ahead.
    pub fn host(layers: Vec<u32>) -> Self {
        Self {
            layers,
            reach: Reach::Layers { offset_layers: 6, capacity_layers: 50, distance_layers: 50 },
            layers_behind: 4,
            high_water_layers: 65,
            low_water_layers: 47,
            units_max: usize::MAX,
            in_flight_max: 10,
            queue_max: 48,
            warm_up_layers: 50,
            slots: false,
        }
    }

    /// Returns the settings of the device's window, which has at most 12 units, of which 6 lie ahead.
    pub fn device(layers: Vec<u32>) -> Self {
        Self {
            layers,
            reach: Reach::Units { pair: true, depth_layers: 4, ahead_units: 6 },
            layers_behind: 2,
            high_water_layers: usize::MAX,
            low_water_layers: usize::MAX,
            units_max: 12,
            in_flight_max: 16,
            queue_max: 48,
            warm_up_layers: 8,
            slots: false,
        }
    }

    /// Checks that the settings work for an order of `order_len` units.
    ///
    /// # Errors
    /// Fails if a setting is 0, or if two settings contradict each other.
    pub(super) fn check(&self, order_len: usize) -> Result<(), WindowError> {
        let zero = [
            (self.in_flight_max, "the ring's number of loads in flight"),
            (self.queue_max, "the ring's queue of requests"),
            (self.low_water_layers, "the ring's low water mark"),
        ];
        if let Some((_, setting)) = zero.into_iter().find(|(value, _)| *value == 0) {
            return Err(WindowError::Zero { setting });
        }
        let contradiction = |problem: String| Err(WindowError::Ring { problem });
        if self.units_max < 2 {
            return contradiction(format!("{} units at most, but one is used while the next comes", self.units_max));
        }
        if !self.layers.is_empty() && self.layers.len() != order_len {
            return contradiction(format!("{} positions have layers, the order has {order_len}", self.layers.len()));
        }
        if self.low_water_layers > self.high_water_layers {
            let (low, high) = (self.low_water_layers, self.high_water_layers);
            return contradiction(format!("the low water mark of {low} layers is above the high one of {high}"));
        }
        if self.high_water_layers < 2 {
            return contradiction("a high water mark of 1 layer keeps the next layer out while one is used".into());
        }
        Ok(())
    }
}
