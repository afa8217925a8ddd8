//! `--memdbg`: what holds memory, chunk by chunk, in words, on standard error.

use super::report::pressure_name;
use crate::alloc;
use plimsoll_memguard::{MemorySample, Probe, Regions};
use plimsoll_prefill::{ChunkReport, Held};
use std::io::{self, Write as _};

/// Changes below this are not worth a word.
const LEAST_BYTES: i64 = 64 << 10;

/// The end of every line in mode 2, which the first line explains.
const CHANGED: &str = " (changed by looking)";

/// Who holds how many bytes at one moment; the sum is the footprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Holders {
    keys_and_values: i64,
    arena: i64,
    /// Live allocations beside weights, keys and values.
    live: i64,
    retained: i64,
    /// What no count explains. Below zero where memory was allocated and not touched yet.
    rest: i64,
}

impl Holders {
    /// Names and bytes, and what it means if they grow.
    fn all(&self) -> [(&'static str, i64, &'static str); 5] {
        [
            ("keys and values", self.keys_and_values, "planned for every token"),
            ("arena", self.arena, "its size follows the rows of the chunk"),
            ("live allocations", self.live, "something keeps what it allocated"),
            ("allocator retention", self.retained, "freed, and kept by the allocator"),
            ("outside of every count", self.rest, "stacks, pages touched for the first time, or the system's side"),
        ]
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            keys_and_values: self.keys_and_values - before.keys_and_values,
            arena: self.arena - before.arena,
            live: self.live - before.live,
            retained: self.retained - before.retained,
            rest: self.rest - before.rest,
        }
    }

    /// Which holders grew or shrank, the largest change first, in words.
    fn in_words(&self) -> String {
        let mut changes = self.all().to_vec();
        changes.retain(|(_, bytes, _)| bytes.abs() >= LEAST_BYTES);
        changes.sort_by_key(|(_, bytes, _)| -bytes.abs());
        let words = |&(name, bytes, meaning): &(&str, i64, &str)| match bytes > 0 {
            true => format!("{name} grew by {} ({meaning})", mib(bytes)),
            false => format!("{name} shrank by {}", mib(-bytes)),
        };
        if changes.is_empty() {
            "nobody grew".to_owned()
        } else {
            changes.iter().map(words).collect::<Vec<_>>().join("; ")
        }
    }
}

/// Tells of memory on standard error.
pub(super) struct MemoryDebug<'a> {
    mode: u8,
    probe: &'a dyn Probe,
    weights_bytes: u64,
    chunks: usize,
    first: Option<Holders>,
    last: Option<Holders>,
    /// Prompt tokens between `first` and `last`.
    tokens: usize,
}

impl<'a> MemoryDebug<'a> {
    /// `mode`: 1 looks, 2 also gives back and looks again.
    pub(super) fn new(mode: u8, probe: &'a dyn Probe, weights_bytes: u64) -> Self {
        let debug = Self { mode, probe, weights_bytes, chunks: 0, first: None, last: None, tokens: 0 };
        if mode == 2 {
            debug.say("mode 2: after each chunk, what can be given back is, and memory is read again");
        }
        debug
    }

    /// After a chunk, drained.
    pub(super) fn chunk(&mut self, chunk: &ChunkReport) {
        self.chunks += 1;
        let held = chunk.held_after;
        let (before, after) = (chunk.before.unwrap_or_default(), chunk.after.unwrap_or_default());
        let drained = chunk.drained.unwrap_or(after);
        let first = self.first.is_none().then(|| self.holders(&before, chunk.held_before));
        let footprint = |sample: &MemorySample| sample.footprint.map_or("unknown".to_owned(), mib_of);
        self.say(&format!(
            "chunk {}, {} rows at {}: planned {}, charged beyond it {}, used {}; footprint {} -> {}, drained {}; pressure {}",
            self.chunks,
            chunk.rows,
            chunk.start,
            mib_of(chunk.planned_bytes),
            mib_of(chunk.charged_bytes),
            chunk.measured_bytes.map_or("unknown".to_owned(), mib_of),
            footprint(&before),
            footprint(&after),
            footprint(&drained),
            pressure_name(chunk.pressure),
        ));
        let seen = match self.mode {
            2 => {
                alloc::trim();
                let again = self.probe.sample();
                self.say(&format!("  given back and read again: footprint {}", footprint(&again)));
                again
            }
            _ => drained,
        };
        let now = self.tell(&seen, held);
        let before = self.last.or(first).unwrap_or_default();
        self.say(&format!("  since the chunk before: {}", now.since(&before).in_words()));
        let given_back = self.holders(&seen, held).since(&self.holders(&after, held));
        if given_back != Holders::default() {
            self.say(&format!("  by the drain: {}", given_back.in_words()));
        }
        match self.first {
            // The first chunk makes the arena and fills pools: growth per token is counted from its end.
            None => self.first = Some(now),
            Some(_) => self.tokens += chunk.rows,
        }
        self.last = Some(now);
    }

    /// After the run, `held` by the session.
    pub(super) fn end(&self, held: Held) {
        self.say("end of the run");
        let sample = self.probe.sample();
        self.tell(&sample, held);
        let (Some(first), Some(last)) = (self.first, self.last) else { return };
        if self.tokens == 0 {
            return self.say("  per prompt token: one chunk tells nothing of growth");
        }
        let per_token = last
            .since(&first)
            .all()
            .map(|(name, bytes, _)| format!("{name} {:.3} KiB", bytes as f64 / 1024.0 / self.tokens as f64));
        self.say(&format!("  per prompt token, over the last {}: {}", self.tokens, per_token.join(", ")));
    }

    /// Tells who holds what, and in which regions.
    fn tell(&self, sample: &MemorySample, held: Held) -> Holders {
        let holders = self.holders(sample, held);
        let each = holders.all().map(|(name, bytes, _)| format!("{name} {}", mib(bytes)));
        self.say(&format!(
            "  held: weights {}, {}; device counter: none, this is the CPU",
            mib_of(self.weights_bytes),
            each.join(", ")
        ));
        if let Some(regions) = Regions::read() {
            let each = regions.charged().map(|(name, bytes)| format!("{name} {}", mib_of(bytes)));
            self.say(&format!(
                "  regions: {}; beside the footprint, file pages {}",
                each.join(", "),
                mib_of(regions.file_cache_bytes)
            ));
        }
        holders
    }

    fn holders(&self, sample: &MemorySample, held: Held) -> Holders {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        let (kv, mapped_kv) = (signed(held.kv_bytes), signed(held.mapped_kv_bytes));
        let arena = signed(held.transient_bytes.unwrap_or(0));
        let (live, retained) = (signed(sample.live.unwrap_or(0)), signed(sample.retained.unwrap_or(0)));
        // Arena and large blocks are mapped, weights and small blocks are among the live allocations.
        let counted = live + retained + arena + mapped_kv;
        Holders {
            keys_and_values: kv,
            arena,
            live: live - signed(self.weights_bytes) - (kv - mapped_kv),
            retained,
            rest: signed(sample.footprint.unwrap_or(0)) - counted,
        }
    }

    fn say(&self, text: &str) {
        let end = if self.mode == 2 { CHANGED } else { "" };
        // Whoever closed standard error does not want to know.
        let _ = writeln!(io::stderr(), "memdbg: {text}{end}");
    }
}

fn mib_of(bytes: u64) -> String {
    mib(i64::try_from(bytes).unwrap_or(i64::MAX))
}

fn mib(bytes: i64) -> String {
    format!("{:.2} MiB", bytes as f64 / 1_048_576.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_memguard::FixedProbe;

    const MIB: i64 = 1 << 20;

    #[test]
    fn the_largest_change_comes_first_and_small_ones_are_left_out() {
        let change = Holders { keys_and_values: MIB, arena: -3 * MIB, live: 1000, retained: 2 * MIB, rest: -1000 };
        assert_eq!(
            change.in_words(),
            "arena shrank by 3.00 MiB; allocator retention grew by 2.00 MiB (freed, and kept by the allocator); \
             keys and values grew by 1.00 MiB (planned for every token)"
        );
        assert_eq!(Holders::default().in_words(), "nobody grew");
    }

    #[test]
    fn holders_add_up_to_the_footprint() {
        let probe = FixedProbe::footprints([0]);
        let debug = MemoryDebug::new(1, &probe, 100);
        // Of the 40 bytes of keys and values, the allocator has counted those that are not mapped.
        for (mapped_kv_bytes, live) in [(0, 30), (25, 55), (40, 70)] {
            let footprint = 260 + mapped_kv_bytes;
            let sample = MemorySample { live: Some(170), retained: Some(7), device: None, footprint: Some(footprint) };
            let held = Held { kv_bytes: 40, mapped_kv_bytes, transient_bytes: Some(60) };
            let holders = debug.holders(&sample, held);
            assert_eq!(holders, Holders { keys_and_values: 40, arena: 60, live, retained: 7, rest: 23 });
            let sum: i64 = holders.all().into_iter().map(|(_, bytes, _)| bytes).sum();
            assert_eq!(u64::try_from(sum + 100), Ok(footprint));
        }
    }
}
