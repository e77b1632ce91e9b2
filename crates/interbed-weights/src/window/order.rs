//! The cyclic order in which a pass acquires units.

use super::error::WindowError;
use super::unit_id::UnitId;

const ON_DEMAND: u32 = u32::MAX;

/// Cyclic order of units: says which unit follows which.
#[derive(Debug)]
pub(super) struct Order {
    units: Vec<UnitId>,
    /// Position of each unit in the order; [`ON_DEMAND`] for units outside the order.
    positions: Vec<u32>,
}

impl Order {
    /// Creates an order from `units`, which are some or all of the window's `num_units` units.
    ///
    /// # Errors
    /// Fails if `units` names an unknown unit or names a unit twice, or if `num_units` is too large.
    pub fn new(units: Vec<UnitId>, num_units: usize) -> Result<Self, WindowError> {
        if num_units >= ON_DEMAND as usize {
            return Err(WindowError::TooLarge { units: num_units });
        }
        let mut positions = vec![ON_DEMAND; num_units];
        for (position, &unit) in units.iter().enumerate() {
            match positions.get_mut(unit.index()) {
                None => return Err(WindowError::UnknownUnit { unit, units: num_units }),
                Some(place) if *place != ON_DEMAND => return Err(WindowError::RepeatedUnit { unit }),
                // The position is below the number of units, which was checked.
                Some(place) => *place = position as u32,
            }
        }
        Ok(Self { units, positions })
    }

    pub fn len(&self) -> usize {
        self.units.len()
    }

    pub fn units(&self) -> &[UnitId] {
        &self.units
    }

    pub fn unit(&self, position: usize) -> UnitId {
        self.units[position]
    }

    /// Returns the position of a unit in the order, or `None` if the unit is not in the order.
    pub fn position(&self, unit: UnitId) -> Option<usize> {
        let position = self.positions[unit.index()];
        (position != ON_DEMAND).then_some(position as usize)
    }

    /// Returns the units that are not in the order, by ascending number.
    pub fn on_demand(&self) -> impl Iterator<Item = UnitId> {
        self.positions.iter().zip(0..).filter(|(position, _)| **position == ON_DEMAND).map(|(_, unit)| UnitId(unit))
    }

    /// Returns the position after `position`; the first position follows the last.
    pub fn next(&self, position: usize) -> usize {
        if position + 1 >= self.units.len() { 0 } else { position + 1 }
    }

    /// Returns the number of steps forward from one position to another in the cyclic order.
    pub fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.units.len() - from }
    }
}
