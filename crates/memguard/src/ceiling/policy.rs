//! How much of a machine is left to others: from ceilings to a budget.

use std::fmt;
use std::str::FromStr;

use super::{Ceiling, CeilingSource, Ceilings};
use crate::ByteSize;

const GIB: u64 = 1 << 30;

/// RAM from which on a policy keeps its whole reserve; smaller machines keep the same share.
const FULL_RESERVE_RAM_BYTES: u64 = 32 * GIB;

/// What a control group needs beside the process's own memory: page tables, sockets, files on their way to the disk.
const GROUP_RESERVE_BYTES: u64 = 64 << 20;

/// How much of what the machine has is left to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// For a machine one works at: 8 GiB of RAM stay free, a quarter where there are less than 32 GiB.
    Safe,
    /// 6 GiB of RAM stay free, three sixteenths where there are less than 32 GiB.
    #[default]
    Balanced,
    /// For a machine that does nothing else: 4 GiB of RAM stay free, an eighth where there are less than 32 GiB.
    Aggressive,
    /// A reserve of the caller's, however small the machine.
    Custom {
        /// RAM that stays free.
        reserve_bytes: u64,
    },
}

/// A budget, and how it came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyBudget {
    /// What may be used.
    pub bytes: u64,
    /// The ceiling that allows the least.
    pub limited_by: Ceiling,
    /// What was taken off that ceiling.
    pub reserve_bytes: u64,
}

impl Policy {
    /// The policies that go by a name alone, the most careful first.
    pub const NAMED: [Self; 3] = [Self::Safe, Self::Balanced, Self::Aggressive];

    /// `safe`, `balanced`, `aggressive`, or `custom`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Balanced => "balanced",
            Self::Aggressive => "aggressive",
            Self::Custom { .. } => "custom",
        }
    }

    /// What stays free of `ceiling`.
    ///
    /// Of RAM it is the policy's reserve; of a control group 64 MiB, or a sixteenth if that is less, since the group is the
    /// process's own, but counts more than its memory. Limits of a device leave room for others already.
    #[must_use]
    pub fn reserve_bytes(&self, ceiling: &Ceiling) -> u64 {
        match ceiling.source {
            CeilingSource::Ram | CeilingSource::RamAvailable => self.ram_reserve_bytes(ceiling.bytes),
            CeilingSource::CgroupV1 { .. } | CeilingSource::CgroupV2 { .. } => {
                GROUP_RESERVE_BYTES.min(ceiling.bytes / 16)
            }
            CeilingSource::WiredLimit | CeilingSource::WorkingSet { .. } => 0,
        }
    }

    fn ram_reserve_bytes(&self, ram_bytes: u64) -> u64 {
        let full_bytes = match *self {
            Self::Safe => 8 * GIB,
            Self::Balanced => 6 * GIB,
            Self::Aggressive => 4 * GIB,
            Self::Custom { reserve_bytes } => return reserve_bytes.min(ram_bytes),
        };
        full_bytes.min(ram_bytes / (FULL_RESERVE_RAM_BYTES / GIB) * (full_bytes / GIB))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Without a unit where the size in one would read back as another number.
            Self::Custom { reserve_bytes } => {
                let size = ByteSize::new(*reserve_bytes).to_string();
                match size.parse::<ByteSize>() {
                    Ok(read) if read.bytes() == *reserve_bytes => write!(f, "custom:{size}"),
                    _ => write!(f, "custom:{reserve_bytes}"),
                }
            }
            named => f.write_str(named.name()),
        }
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    /// Reads the name of one of [`Policy::NAMED`], or `custom:` with a reserve (`custom:2GiB`).
    fn from_str(text: &str) -> Result<Self, UnknownPolicy> {
        if let Some(reserve) = text.strip_prefix("custom:").and_then(|size| size.parse::<ByteSize>().ok()) {
            return Ok(Self::Custom { reserve_bytes: reserve.bytes() });
        }
        Self::NAMED.into_iter().find(|policy| policy.name() == text).ok_or_else(|| UnknownPolicy(text.to_owned()))
    }
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no policy: safe, balanced, aggressive, or custom:2GiB")]
pub struct UnknownPolicy(pub String);

impl Ceilings {
    /// The budget under `policy`: the lowest that a fixed ceiling allows once the policy's reserve is off. `None` where no
    /// ceiling is known.
    #[must_use]
    pub fn budget(&self, policy: Policy) -> Option<PolicyBudget> {
        let of = |ceiling: &Ceiling| {
            let reserve_bytes = policy.reserve_bytes(ceiling);
            let bytes = ceiling.bytes.saturating_sub(reserve_bytes);
            PolicyBudget { bytes, limited_by: ceiling.clone(), reserve_bytes }
        };
        self.iter().filter(|ceiling| !ceiling.source.is_momentary()).map(of).min_by_key(|budget| budget.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ceilings(found: &[(CeilingSource, u64)]) -> Ceilings {
        found.iter().fold(Ceilings::default(), |all, (source, bytes)| {
            all.with(Ceiling { source: source.clone(), bytes: *bytes, used_bytes: None })
        })
    }

    fn group() -> CeilingSource {
        CeilingSource::CgroupV2 { file: "/g/memory.max".into() }
    }

    #[test]
    fn reserves_are_those_of_the_policy_and_shares_on_small_machines() {
        let budgets =
            |ram| Policy::NAMED.map(|policy| ceilings(&[(CeilingSource::Ram, ram)]).budget(policy).unwrap().bytes);
        assert_eq!(budgets(128 * GIB), [120 * GIB, 122 * GIB, 124 * GIB]);
        assert_eq!(budgets(36 * GIB), [28 * GIB, 30 * GIB, 32 * GIB]);
        assert_eq!(budgets(16 * GIB), [12 * GIB, 13 * GIB, 14 * GIB]);
        assert_eq!(budgets(GIB), [768 << 20, 832 << 20, 896 << 20]);
    }

    #[test]
    fn the_ceiling_that_allows_least_is_named() {
        let found = ceilings(&[
            (CeilingSource::Ram, 64 * GIB),
            (CeilingSource::RamAvailable, GIB),
            (group(), 8 * GIB),
            (CeilingSource::WorkingSet { device: "Apple M4 Max".to_owned() }, 48 * GIB),
        ]);
        let budget = found.budget(Policy::Balanced).unwrap();
        assert_eq!((budget.bytes, budget.reserve_bytes), (8 * GIB - (64 << 20), 64 << 20));
        assert_eq!(budget.limited_by.source, group());
        let found = ceilings(&[(CeilingSource::Ram, 64 * GIB), (CeilingSource::WiredLimit, 56 * GIB)]);
        assert_eq!(
            found.budget(Policy::Safe).unwrap().limited_by.source,
            CeilingSource::Ram,
            "64 - 8 and 56: the first"
        );
        assert_eq!(found.budget(Policy::Aggressive).unwrap().limited_by.source, CeilingSource::WiredLimit);
    }

    #[test]
    fn a_small_group_keeps_most_of_what_it_has() {
        let budget = |bytes| ceilings(&[(group(), bytes)]).budget(Policy::Balanced).unwrap().bytes;
        assert_eq!(budget(512 << 20), 480 << 20);
        assert_eq!(budget(0), 0);
    }

    #[test]
    fn a_reserve_of_ones_own_is_taken_as_it_is() {
        let found = ceilings(&[(CeilingSource::Ram, 16 * GIB)]);
        let budget = |reserve_bytes| found.budget(Policy::Custom { reserve_bytes }).unwrap().bytes;
        assert_eq!((budget(GIB), budget(99 * GIB)), (15 * GIB, 0));
    }

    #[test]
    fn nothing_known_is_no_budget() {
        assert_eq!(Ceilings::default().budget(Policy::Safe), None);
        assert_eq!(ceilings(&[(CeilingSource::RamAvailable, GIB)]).budget(Policy::Safe), None);
    }

    #[test]
    fn policies_are_read_by_name() {
        let own = [
            Policy::Custom { reserve_bytes: 3 << 29 },
            Policy::Custom { reserve_bytes: 0 },
            Policy::Custom { reserve_bytes: GIB + 1 },
        ];
        for policy in Policy::NAMED.into_iter().chain(own) {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("custom".parse::<Policy>().is_err() && "custom:much".parse::<Policy>().is_err());
        let error = "brave".parse::<Policy>().unwrap_err();
        assert_eq!(error.to_string(), "\"brave\" is no policy: safe, balanced, aggressive, or custom:2GiB");
    }

    proptest! {
        #[test]
        fn a_bolder_policy_never_allows_less_and_no_policy_more_than_there_is(ram in 0..1u64 << 50) {
            let budgets = Policy::NAMED.map(|policy| ceilings(&[(CeilingSource::Ram, ram)]).budget(policy).unwrap().bytes);
            prop_assert!(budgets.is_sorted() && budgets[2] <= ram, "{:?} of {}", budgets, ram);
        }
    }
}
