//! How close the process is to its ceiling, with hysteresis.

mod room;

pub use room::{FixedMachine, Machine, Room, SystemMachine};

/// The levels, and what each asks of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pressure {
    /// Nothing to do.
    Nominal,
    /// Evict caches, shrink chunks, admit nobody.
    Soft,
    /// Shrink to the floor, wait a few polls, then end a request with a typed error.
    Hard,
}

/// Where the levels begin, in thousandths of the ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields say what they hold and in which unit")]
pub struct Watermarks {
    pub soft_permille: u16,
    pub hard_permille: u16,
    /// A level ends only this far below where it begins, so that it does not flap.
    pub hysteresis_permille: u16,
}

impl Watermarks {
    /// Soft at 85%, hard at 95%.
    pub const SAFE: Self = Self { soft_permille: 850, hard_permille: 950, hysteresis_permille: 20 };
    /// Soft at 90%, hard at 95%.
    pub const BALANCED: Self = Self { soft_permille: 900, ..Self::SAFE };
    /// Soft at 92.5%, hard at 95%.
    pub const AGGRESSIVE: Self = Self { soft_permille: 925, ..Self::SAFE };

    /// Bytes at which `level` begins under a ceiling of `ceiling_bytes`.
    #[must_use]
    pub fn begins_bytes(&self, level: Pressure, ceiling_bytes: u64) -> u64 {
        match level {
            Pressure::Nominal => 0,
            Pressure::Soft => share(ceiling_bytes, self.soft_permille),
            // Hard never begins below soft.
            Pressure::Hard => share(ceiling_bytes, self.hard_permille.max(self.soft_permille)),
        }
    }

    fn ends_bytes(&self, level: Pressure, ceiling_bytes: u64) -> u64 {
        self.begins_bytes(level, ceiling_bytes).saturating_sub(share(ceiling_bytes, self.hysteresis_permille))
    }
}

/// Rounded up, so that zero bytes in use are nominal under any ceiling but zero.
fn share(bytes: u64, permille: u16) -> u64 {
    let share = (u128::from(bytes) * u128::from(permille)).div_ceil(1000);
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// The level now. Use and ceiling are given anew at each reading; only the level itself is kept, for hysteresis.
#[derive(Debug, Clone)]
pub struct PressureGauge {
    watermarks: Watermarks,
    level: Pressure,
    hard_transitions: u64,
}

impl PressureGauge {
    /// A gauge at nominal.
    #[must_use]
    pub fn new(watermarks: Watermarks) -> Self {
        Self { watermarks, level: Pressure::Nominal, hard_transitions: 0 }
    }

    /// The level with `used_bytes` in use under `ceiling_bytes`. Rises at once, falls below the hysteresis.
    pub fn read(&mut self, used_bytes: u64, ceiling_bytes: u64) -> Pressure {
        let holds = |level: Pressure| {
            let bound = if level <= self.level {
                self.watermarks.ends_bytes(level, ceiling_bytes)
            } else {
                self.watermarks.begins_bytes(level, ceiling_bytes)
            };
            used_bytes >= bound
        };
        let level = [Pressure::Hard, Pressure::Soft].into_iter().find(|level| holds(*level));
        let level = level.unwrap_or(Pressure::Nominal);
        if level == Pressure::Hard && self.level != Pressure::Hard {
            self.hard_transitions += 1;
        }
        self.level = level;
        level
    }

    /// The level of the last reading.
    #[must_use]
    pub fn level(&self) -> Pressure {
        self.level
    }

    /// How often the level became hard.
    #[must_use]
    pub fn hard_transitions(&self) -> u64 {
        self.hard_transitions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn levels_rise_at_once_and_fall_below_the_hysteresis() {
        let mut gauge = PressureGauge::new(Watermarks::SAFE);
        let levels: Vec<_> = [0, 849, 850, 840, 830, 829, 950, 949, 930, 929, 840, 100, 2000]
            .into_iter()
            .map(|used| gauge.read(used, 1000))
            .collect();
        use Pressure::{Hard, Nominal, Soft};
        let want = [Nominal, Nominal, Soft, Soft, Soft, Nominal, Hard, Hard, Hard, Soft, Soft, Nominal, Hard];
        assert_eq!(levels, want);
        assert_eq!((gauge.hard_transitions(), gauge.level()), (2, Hard));
    }

    #[test]
    fn a_new_ceiling_counts_at_once() {
        let mut gauge = PressureGauge::new(Watermarks::BALANCED);
        assert_eq!(gauge.read(900, 1000), Pressure::Soft);
        assert_eq!(gauge.read(900, 2000), Pressure::Nominal);
        assert_eq!(gauge.read(900, 900), Pressure::Hard);
        assert_eq!(gauge.read(900, 2000), Pressure::Nominal);
    }

    proptest! {
        #[test]
        fn jitter_within_the_hysteresis_changes_the_level_once(ceiling in 1_000..u64::MAX / 2, level in 0..1_200u64, jitter in prop::collection::vec(0..20u64, 1..30)) {
            let mut gauge = PressureGauge::new(Watermarks::AGGRESSIVE);
            let mut changes = 0;
            let mut last = None;
            // Downwards from the first reading, by less than the hysteresis.
            for down in std::iter::once(0).chain(jitter.into_iter().map(|j| j * (ceiling / 1000) / 2)) {
                let now = gauge.read((ceiling / 1000 * level).saturating_sub(down), ceiling);
                changes += u32::from(last.is_some_and(|last| last != now));
                last = Some(now);
            }
            prop_assert_eq!(changes, 0);
        }

        #[test]
        fn a_fresh_gauge_is_monotone_in_use(ceiling in 0..u64::MAX, used in 0..u64::MAX, more in 0..u64::MAX) {
            let level = |used| PressureGauge::new(Watermarks::SAFE).read(used, ceiling);
            prop_assert!(level(used) <= level(used.saturating_add(more)));
        }
    }
}
