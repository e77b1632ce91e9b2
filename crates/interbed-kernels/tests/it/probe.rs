//! Tests that every unit of every level can be measured, and that the products' unit exists.

use interbed_kernels::{DType, Level, Unit, peak, read_bandwidth};

use crate::support::pool;

#[test]
fn every_unit_of_every_level_is_measured() {
    let pool = pool(2);
    for level in Level::available() {
        for unit in Unit::ALL {
            let measured = peak(&pool, level, unit, 1);
            assert_eq!(measured.is_some(), unit.exists_at(level), "{unit} at {}", level.name());
            if let Some(measured) = measured {
                assert!(measured.is_finite() && measured > 1e6, "{unit} at {}: {measured}", level.name());
            }
        }
        for dtype in DType::ALL {
            assert!(Unit::of(level, dtype).exists_at(level), "{dtype} at {}", level.name());
        }
    }
}

#[test]
fn reads_are_measured_on_any_number_of_threads() {
    let buffer = vec![1u8; 1 << 20];
    for threads in [1, 3] {
        let measured = read_bandwidth(&pool(threads), Level::detect(), &buffer, 2);
        assert!(measured.is_finite() && measured > 1e6, "{measured}");
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[test]
fn tile_loops_run() {
    let Some(level) = crate::tile_emulator::amx_level() else { return };
    for unit in [Unit::AmxBf16, Unit::AmxInt8] {
        let measured = peak(&pool(1), level, unit, 1);
        assert!(measured.is_some_and(|measured| measured.is_finite() && measured > 1e3), "{unit}: {measured:?}");
    }
}
