//! Settings of the ring policy. The defaults suit a machine with a GPU of 16 GB, 125 GB of host memory and a model of
//! 80 layers that fills both.

use super::error::WindowError;

/// Settings of [`Policy::Ring`](super::Policy::Ring), under which the window slides along the order.
///
/// The name of each field says whether it counts layers or units. A layer is a run of consecutive units in the order,
/// such as the attention and the FFN of one model layer. [`RingConfig::host`] and [`RingConfig::device`] return the
/// default settings for the two tiers, host memory and device memory.
#[derive(Debug, Clone, PartialEq)]
pub struct RingConfig {
    /// Layer number of each position in the order. Consecutive positions with equal numbers form one layer. If the list
    /// is empty, each unit is a layer of its own.
    pub layers: Vec<u32>,
    /// Rule for which units are loaded ahead of the pass.
    pub reach: Reach,
    /// Number of layers behind the current layer that stay in memory. The default is 4 on the host and 2 on the device.
    pub layers_behind: usize,
    /// High-water mark. While this many layers hold memory, the window does not begin to load a further layer ahead of
    /// the pass, but evicts the layers that are needed last. The default is 65 on the host. On the device, the default
    /// is no limit.
    pub high_water_layers: usize,
    /// Low-water mark. Once the high-water mark is reached, the window evicts layers until only this many hold memory.
    /// It does not evict layers that the pass needs before the layer that is to be loaded. The default is 47 on the
    /// host. On the device, the mark is unused by default.
    pub low_water_layers: usize,
    /// Maximum number of units that hold memory. The setting must be at least 2. The default is 12 on the device. On
    /// the host, the default is no limit.
    pub units_max: usize,
    /// Maximum number of loads in flight. The limit delays only units that are loaded ahead of the pass, not units that
    /// were announced or for which a caller waits. The default is 10 on the host and 16 on the device.
    pub in_flight_max: usize,
    /// Maximum number of load requests in the queue. Further requests are refused, and made again once the pass has
    /// moved on. The default is 48.
    pub queue_max: usize,
    /// Number of layers that are loaded before the first pass. The default is 50 on the host and 8 on the device.
    pub warm_up_layers: usize,
    /// Whether each unit takes a slot of the largest unit's size. If false, each unit takes only its own size.
    pub slots: bool,
}

/// Rule for which units a ring loads ahead of the pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The ring loads whole layers in order. The host uses this rule by default. The window is `capacity_layers` layers
    /// long. Its first layer, the anchor, lies `offset_layers` layers after the current layer. Layers between the
    /// current layer and the anchor stay in memory until they have been used.
    Layers {
        /// Number of layers from the current layer to the anchor. The default is 6.
        offset_layers: usize,
        /// Number of layers in the window. The default is 50.
        capacity_layers: usize,
        /// Number of layers, from the anchor on, that the ring asks to load. The default is 50.
        distance_layers: usize,
    },
    /// The ring loads the units that follow the unit in use, and the counterparts of that unit in the following layers.
    /// The device uses this rule by default.
    Units {
        /// Whether the ring also asks for the units that follow the unit in use in its layer, such as the FFN after
        /// attention.
        pair: bool,
        /// Number of following layers in which the ring asks for the counterpart of the unit in use. The counterpart is
        /// the unit at the same place in its layer. The default is 4.
        depth_layers: usize,
        /// Number of next units in the order that the ring asks for, whatever their place in a layer. The default is 6.
        ahead_units: usize,
    },
}

impl RingConfig {
    /// Returns the settings for host memory: a window of 50 layers that begins 6 layers ahead of the pass.
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

    /// Returns the settings for the device: at most 12 units in memory. The next 6 units in the order are loaded ahead
    /// of the pass.
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
