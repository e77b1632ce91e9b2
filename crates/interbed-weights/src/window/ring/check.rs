//! Checks of what must hold of the ring after every event.

use super::RingPlanner;
use crate::window::unit_id::UnitId;
use crate::window::units::{UnitState, Units};

impl RingPlanner {
    /// Checks that the ring's lists and sums agree with the records of the units.
    ///
    /// # Errors
    /// Fails with a description of what does not agree.
    pub(super) fn check(&self, units: &Units) -> Result<(), String> {
        let mut held_of_layer = vec![0; self.layers.count()];
        for unit in (0..units.len() as u32).map(UnitId) {
            let position = self.order.position(unit);
            let listed = position.map_or_else(|| self.on_demand.is_idle(unit), |position| self.idle.contains(position));
            if listed != units.is_idle(unit) {
                return Err(format!("{unit:?}: listed as idle: {listed}, {:?}", units.get(unit)));
            }
            if let Some(position) = position {
                held_of_layer[self.layers.layer_of(position)] += u32::from(units.get(unit).state != UnitState::Absent);
                if listed && !self.keeps(position) {
                    return Err(format!("{unit:?} was left and lingers"));
                }
            }
        }
        let layers_held = held_of_layer.iter().filter(|held| **held > 0).count();
        if held_of_layer != self.held_of_layer || layers_held != self.layers_held {
            return Err(format!("layers hold {held_of_layer:?}, noted {:?}", self.held_of_layer));
        }
        if units.held > self.config.units_max || self.queue.len() > self.config.queue_max {
            return Err(format!("{} units, {} requests", units.held, self.queue.len()));
        }
        Ok(())
    }
}
