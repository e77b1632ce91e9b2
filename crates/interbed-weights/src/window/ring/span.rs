//! Computes which positions the ring covers: those ahead that it fetches, and those behind that it keeps.

use super::RingPlanner;
use crate::window::ring_config::Reach;

impl RingPlanner {
    /// Returns how many positions from the current one on may be asked for while the pass is at the current one.
    pub(super) fn reach_len(&self) -> usize {
        let layer = self.layers.layer_of(self.current);
        let in_layer = self.current - self.layers.positions(layer).start;
        let reach = match self.config.reach {
            Reach::Layers { offset_layers, capacity_layers, distance_layers } => {
                let layers = offset_layers.saturating_add(capacity_layers.min(distance_layers)).max(1);
                self.layers.positions_in(layer, layers).saturating_sub(in_layer)
            }
            Reach::Units { depth_layers, ahead_units, .. } => {
                let layers = self.layers.positions_in(layer, depth_layers.saturating_add(1)).saturating_sub(in_layer);
                layers.max(ahead_units.saturating_add(1))
            }
        };
        reach.min(self.order.len())
    }

    /// Returns how many positions are asked for now, within the limit of a warm-up.
    pub(super) fn fetch_len(&self) -> usize {
        let warm_up = if self.warming { self.config.warm_up_layers } else { usize::MAX };
        self.layers.positions_in(self.layers.layer_of(self.current), warm_up).min(self.reach_len())
    }

    pub(super) fn is_in_reach(&self, position: usize) -> bool {
        self.order.distance(self.current, position) < self.reach_len()
    }

    /// Returns the first position that is kept although the pass has gone past it.
    pub(super) fn first_kept(&self) -> usize {
        let layers = self.layers.count();
        let behind = self.config.layers_behind.min(layers - 1);
        self.layers.positions(self.layers.layer_of(self.current) + layers - behind).start
    }

    /// Returns whether the unit at `position` is in the window or not far behind the pass.
    pub(super) fn keeps(&self, position: usize) -> bool {
        let behind = self.order.distance(self.first_kept(), self.current);
        self.order.distance(self.first_kept(), position) < behind + self.reach_len()
    }

    /// Returns whether the unit at `position` is behind the pass, but near enough to be kept.
    pub(super) fn is_just_behind(&self, position: usize) -> bool {
        let behind = self.order.distance(self.first_kept(), self.current);
        self.order.distance(self.first_kept(), position) < behind
    }
}
