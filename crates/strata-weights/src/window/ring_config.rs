//! What the ring can be told. Names in capitals are those of the seed, whose defaults these are (W11).

use super::error::WindowError;

/// How [`Policy::Ring`](super::Policy::Ring) slides.
///
/// Counts are layers or units as their names say; a layer is a run of neighbours in the order (attention and ffn of one
/// layer, or a single unit). [`RingConfig::host`] and [`RingConfig::device`] are the seed's two windows.
#[derive(Debug, Clone, PartialEq)]
pub struct RingConfig {
    /// By position in the order: which layer the unit belongs to. Neighbours with equal numbers are one layer. Empty:
    /// each unit is a layer of its own.
    pub layers: Vec<u32>,
    /// What is fetched ahead of the pass.
    pub reach: Reach,
    /// How many layers behind the current one stay: the seed's safety margin of 4 in the host, `GPU_BEHIND` 2 in the
    /// device.
    pub layers_behind: usize,
    /// A layer is not begun while so many are held, until the farthest are cleaned away: `CPU_CACHE_HWM_LAYERS`, 65.
    pub high_water_layers: usize,
    /// So many are left by a cleaning, unless what is left is needed sooner: `CPU_CACHE_LWM_LAYERS`, 47.
    pub low_water_layers: usize,
    /// The most units held, at least 2: `GPU_MAX_GROUPS`, 12. The host is bounded by layers and bytes only.
    pub units_max: usize,
    /// The most loads under way: `CPU_PF_WORKERS`, 10, and `MAX_INFLIGHT_GROUPS`, 16. What is waited for is not held
    /// up.
    pub in_flight_max: usize,
    /// The most requests that queue for that: `H2D_GROUP_BACKLOG_MAX`, 48. More are not queued; they come when the pass
    /// has moved on.
    pub queue_max: usize,
    /// How many layers a start fetches: all of `CPU_CACHE_LAYERS`, 50, and `WARMUP_LAYERS_GPU`, 8.
    pub warm_up_layers: usize,
    /// Whether each unit takes a slot of the largest unit's bytes, or (false) its own bytes.
    pub slots: bool,
}

/// What a ring fetches ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Whole layers in order, as the seed's host tier. The anchor is the current layer + `offset_layers`; the window is
    /// `capacity_layers` from there. What lies between the current layer and the anchor stays until it was used.
    Layers {
        /// `CPU_RING_OFFSET`, 6.
        offset_layers: usize,
        /// `CPU_CACHE_LAYERS`, 50.
        capacity_layers: usize,
        /// How many layers from the anchor on are asked for: `CPU_PREFETCH_DISTANCE`, 50.
        distance_layers: usize,
    },
    /// Units related to the one in use, as the seed's device tier.
    Units {
        /// Whether using a unit asks for what follows it in its layer: attention for ffn ("pair").
        pair: bool,
        /// In how many further layers the unit's counterpart is asked for ("ahead"): `GROUP_PREFETCH_DEPTH`, 4.
        depth_layers: usize,
        /// How many next units are asked for, whatever they are: `GPU_AHEAD_GROUPS`, 6.
        ahead_units: usize,
    },
}

impl RingConfig {
    /// The seed's host tier: 50 layers from 6 ahead.
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

    /// The seed's device tier: 12 groups, of which 6 lie ahead.
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
    /// A setting that is 0, or two that contradict each other.
    pub(super) fn check(&self, order_len: usize) -> Result<(), WindowError> {
        let zero = [
            (self.in_flight_max, "the ring's number of loads under way"),
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
