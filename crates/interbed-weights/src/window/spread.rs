//! Chooses which units stay, so that the streamed units between them come at an even pace.

/// Chooses units of `bytes` (in the order of a pass) that take at most `room` bytes together, spread evenly. After
/// every unit, the bytes chosen so far differ by no more than the largest unit from the even line
/// `room × bytes so far ÷ all bytes`.
///
/// `chosen` is the previous choice, at first empty. The choice changes in one direction only: units are added when
/// there is more room and removed when there is less, so a new budget causes no more loads than the bytes it adds. The
/// changed choice still follows the even line, though less closely.
pub(super) fn spread(bytes: &[u64], room: u64, chosen: &mut [bool]) {
    let total: u64 = bytes.iter().sum();
    let mut kept: u64 = bytes.iter().zip(chosen.iter()).filter(|(_, chosen)| **chosen).map(|(bytes, _)| bytes).sum();
    if total == 0 {
        return;
    }
    let grows = kept <= room;
    let before = chosen.to_vec();
    let (mut passed, mut taken) = (0, 0);
    // Error diffusion: a unit is taken as soon as the line has room for it, so `line - taken` stays below one unit.
    for (bytes, chosen) in bytes.iter().zip(chosen.iter_mut()) {
        passed += bytes;
        let line = (u128::from(room) * u128::from(passed) / u128::from(total)) as u64;
        let fits = taken + bytes <= line;
        if *chosen {
            kept -= bytes;
            *chosen = grows || fits;
        } else {
            *chosen = grows && fits && taken + bytes + kept <= room;
        }
        if *chosen {
            taken += bytes;
        }
    }
    for ((bytes, chosen), before) in bytes.iter().zip(chosen.iter_mut()).zip(before) {
        if !*chosen && (before || grows) && taken + bytes <= room {
            *chosen = true;
            taken += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::spread;

    /// Returns the largest distance from the even line, in bytes.
    fn deviation(bytes: &[u64], room: u64, chosen: &[bool]) -> u64 {
        let total: u64 = bytes.iter().sum();
        let (mut passed, mut taken, mut worst) = (0, 0, 0);
        for (bytes, chosen) in bytes.iter().zip(chosen) {
            passed += bytes;
            taken += if *chosen { *bytes } else { 0 };
            worst = worst.max((room * passed / total).abs_diff(taken));
        }
        worst
    }

    fn chosen_bytes(bytes: &[u64], chosen: &[bool]) -> u64 {
        bytes.iter().zip(chosen).filter(|(_, chosen)| **chosen).map(|(bytes, _)| bytes).sum()
    }

    proptest! {
        #[test]
        fn a_fresh_choice_fills_the_room_and_is_never_a_unit_off_the_line(
            bytes in prop::collection::vec(1_u64..5_000, 1..200), share in 0.0_f64..1.0,
        ) {
            let total: u64 = bytes.iter().sum();
            let room = (total as f64 * share) as u64;
            let mut chosen = vec![false; bytes.len()];
            spread(&bytes, room, &mut chosen);
            let taken = chosen_bytes(&bytes, &chosen);
            let largest = *bytes.iter().max().expect("at least one unit");
            prop_assert!(taken <= room);
            let left = bytes.iter().zip(&chosen).filter(|(_, chosen)| !**chosen).map(|(bytes, _)| *bytes).min();
            prop_assert!(left.is_none_or(|left| taken + left > room), "{left:?} would still fit");
            prop_assert!(deviation(&bytes, room, &chosen) <= largest);
        }

        #[test]
        fn a_changed_choice_only_grows_or_shrinks_and_stays_near_the_line(
            bytes in prop::collection::vec(500_u64..1_000, 50..200),
            shares in prop::collection::vec(0.05_f64..0.95, 1..12),
        ) {
            let total: u64 = bytes.iter().sum();
            let mut chosen = vec![false; bytes.len()];
            for share in shares {
                let room = (total as f64 * share) as u64;
                let before = chosen.clone();
                let grows = chosen_bytes(&bytes, &before) <= room;
                spread(&bytes, room, &mut chosen);
                prop_assert!(chosen_bytes(&bytes, &chosen) <= room);
                let come = before.iter().zip(&chosen).filter(|(before, now)| !**before && **now).count();
                let gone = before.iter().zip(&chosen).filter(|(before, now)| **before && !**now).count();
                prop_assert!(if grows { gone == 0 } else { come == 0 }, "{come} came, {gone} went");
                prop_assert!(deviation(&bytes, room, &chosen) <= 6 * 1_000, "{}", deviation(&bytes, room, &chosen));
            }
        }
    }
}
