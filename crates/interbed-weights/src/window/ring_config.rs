//! Settings of the ring. The defaults suit a machine with a GPU of 16 GB, 125 GB of host memory and a model of 80
//! layers that fills both.

use super::error::WindowError;

/// How [`Policy::Ring`](super::Policy::Ring) slides.
///
/// Counts are of layers or units, as their names say; a layer is a run of neighbours in the order (attention and FFN of
/// one layer, or a single unit). [`RingConfig::host`] and [`RingConfig::device`] are the windows of the two tiers.
#[derive(Debug, Clone, PartialEq)]
pub struct RingConfig {
    /// By position in the order: which layer the unit belongs to. Neighbours with equal numbers are one layer. Empty:
    /// each unit is a layer of its own.
    pub layers: Vec<u32>,
    /// What is fetched ahead of the pass.
    pub reach: Reach,
    /// How many layers behind the current one stay: 4 in the host, 2 in the device.
    pub layers_behind: usize,
    /// The high water mark: with this many layers held, no further layer is begun until the farthest are evicted: 65.
    pub high_water_layers: usize,
    /// The low water mark: evicting the farthest layers stops at this many, or earlier if the rest is needed sooner:
    /// 47.
    pub low_water_layers: usize,
    /// The most units held, at least 2: 12. The host is bounded by layers and bytes only.
    pub units_max: usize,
    /// The most loads in flight: 10 in the host, 16 in the device. Loads that are waited for are not held back by it.
    pub in_flight_max: usize,
    /// The most load requests that may be queued: 48. Further ones are refused; they are made again when the pass has
    /// moved on.
    pub queue_max: usize,
    /// How many layers are fetched at the start: all 50 of the host's window, 8 in the device.
    pub warm_up_layers: usize,
    /// Whether each unit takes a slot of the largest unit's bytes, or (false) its own bytes.
    pub slots: bool,
}

/// What a ring fetches ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Whole layers in order, as in the host. The anchor lies `offset_layers` after the current layer; the window is
    /// `capacity_layers` from there. Layers between the current one and the anchor stay until they have been used.
    Layers {
        /// 6.
        offset_layers: usize,
        /// 50.
        capacity_layers: usize,
        /// How many layers from the anchor on are asked for: 50.
        distance_layers: usize,
    },
    /// Units related to the one in use, as in the device.
    Units {
        /// Whether using a unit asks for the units that follow it in its layer: FFN after attention ("pair").
        pair: bool,
        /// For how many further layers the counterpart of the unit is asked for ("ahead"): 4.
        depth_layers: usize,
        /// How many units that follow in the order are asked for, of whatever kind: 6.
        ahead_units: usize,
    },
}

impl RingConfig {
    /// The host's window: 50 layers from 6 ahead.
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

    /// The device's window: at most 12 units, of which 6 lie ahead.
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

    /// # Errors
    /// A setting is 0, or two settings contradict each other.
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
