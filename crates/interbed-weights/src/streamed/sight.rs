//! Where each unit of streamed weights is at one moment, for pictures of memory.

use crate::window::{Tiers, UnitId, UnitState, Window};

/// State of a unit in one tier of memory: host memory or the device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The unit is not in the tier.
    Absent = 0,
    /// The unit is on its way into the tier.
    Loading = 1,
    /// The unit is in the tier, and not in use.
    Present = 2,
    /// The unit is in the tier, and in use.
    InUse = 3,
    /// The unit is leaving the tier: its memory is being given back.
    Leaving = 4,
}

/// State of a unit in host memory and in the device's memory, packed into one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitSight(u8);

impl UnitSight {
    const STAYS: u8 = 8;
    const DEVICE: u32 = 4;

    /// Returns where a unit is that is read into host memory and computed with there.
    pub(super) fn of_host(host: &Window, unit: UnitId) -> Self {
        Self(in_tier(host, unit))
    }

    /// Returns where a unit is that is read into host memory and copied to a device.
    pub(super) fn of_tiers(tiers: &Tiers, unit: UnitId) -> Self {
        Self(in_tier(tiers.host(), unit) | in_tier(tiers.device(), unit) << Self::DEVICE)
    }

    /// Returns the packed byte. The low four bits describe host memory: the unit's [`Presence`] as a number, plus 8 if
    /// the unit stays in host memory. The high four bits describe the device's memory in the same way.
    pub fn code(self) -> u8 {
        self.0
    }

    /// Returns whether the unit takes host memory: it is loading, present or leaving.
    pub fn is_on_host(self) -> bool {
        self.0 & (Self::STAYS - 1) != Presence::Absent as u8
    }

    /// Returns whether the unit takes device memory: it is loading, present or leaving.
    pub fn is_on_device(self) -> bool {
        Self(self.0 >> Self::DEVICE).is_on_host()
    }
}

fn in_tier(window: &Window, unit: UnitId) -> u8 {
    let presence = match window.state(unit) {
        UnitState::Absent => Presence::Absent,
        UnitState::Inflight => Presence::Loading,
        UnitState::Present if window.users(unit) > 0 => Presence::InUse,
        UnitState::Present => Presence::Present,
        UnitState::Evicting => Presence::Leaving,
    };
    let stays = if window.is_resident(unit) { UnitSight::STAYS } else { 0 };
    presence as u8 | stays
}

/// State of all units at one moment.
#[derive(Debug, Clone, Default)]
pub struct WindowSight {
    /// State of each unit, in the order in which a pass uses the units.
    pub units: Vec<UnitSight>,
    /// Number of bytes of weights in host memory, including units that are loading or leaving.
    pub host_bytes: u64,
    /// Number of bytes of weights in device memory, including units that are loading or leaving.
    pub device_bytes: u64,
}

/// Name and size of a group of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupShape {
    /// Name of the group, for display.
    pub name: String,
    /// Number of units that the group is cut into.
    pub units: usize,
    /// Total number of bytes of the group's units.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Acquired, Policy, ResidentConfig, WindowCommand, WindowConfig};

    #[test]
    fn a_unit_is_seen_on_its_way() {
        let config = WindowConfig {
            unit_bytes: vec![10; 8],
            order: (0..8).map(UnitId).collect(),
            budget: 60,
            policy: Policy::Resident(ResidentConfig { stream_slots: 4 }),
            load_attempts: 1,
        };
        let mut window = Window::new(config).expect("it works");
        let streamed = (0..8).map(UnitId).find(|&unit| !window.is_resident(unit)).expect("not all stay");
        let stays = (0..8).map(UnitId).find(|&unit| window.is_resident(unit)).expect("some stay");
        let code = |window: &Window, unit| UnitSight::of_host(window, unit).code();
        assert_eq!((code(&window, streamed), code(&window, stays)), (0, 8));
        let mut out = Vec::new();
        assert_eq!(window.acquire(streamed, &mut out), Acquired::Pending);
        assert_eq!(code(&window, streamed), Presence::Loading as u8);
        let ticket = out.iter().find_map(|command| match command {
            WindowCommand::Load { unit, ticket, .. } if *unit == streamed => Some(*ticket),
            _ => None,
        });
        assert!(window.loaded(streamed, ticket.expect("it is loaded"), &mut out));
        assert_eq!(code(&window, streamed), Presence::Present as u8);
        assert_eq!(window.acquire(streamed, &mut out), Acquired::Ready);
        assert_eq!(code(&window, streamed), Presence::InUse as u8);
        assert!(UnitSight::of_host(&window, streamed).is_on_host());
        assert!(!UnitSight::of_host(&window, streamed).is_on_device());
    }
}
