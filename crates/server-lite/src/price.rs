//! Prices that a run and its estimate share: one function each, so that they cannot drift apart.

use plimsoll_memguard::{ChunkChoice, ChunkLimits, Pass, Profile, TrackerConfig, TransientTracker};
use plimsoll_models::sampler::SamplerParams;
use plimsoll_prefill::{DEFAULT_MAX_ROWS, GRANULE_ROWS};

/// Tokens of an answer where the user does not say, if they fit.
pub(crate) const DEFAULT_MAX_TOKENS: usize = 1024;

/// Most tokens of a prompt with its answer: positions are 32-bit numbers.
pub(crate) const MAX_CONTEXT_TOKENS: usize = u32::MAX as usize;

/// Rows of the smallest chunk that prefill may be cut down to.
const FLOOR_ROWS: usize = 64;

/// Heap that a run needs beside the arena, the KV and what grows with the vocabulary: threads' stacks and queues, block tables, the answer's text.
pub(crate) const RUN_HEAP_BYTES: u64 = 768 << 10;

/// Heap that choosing tokens needs: the logits that decode starts from and the candidates, with biases and penalties the adjusted logits and
/// what was said, in a map that doubles.
pub(crate) fn sampling_bytes(params: &SamplerParams, vocab_size: usize) -> u64 {
    let plain = SamplerParams {
        temperature: params.temperature,
        top_k: params.top_k,
        top_p: params.top_p,
        min_p: params.min_p,
        typical_p: params.typical_p,
        seed: params.seed,
        ..SamplerParams::default()
    };
    let per_token = if *params == plain { 4 + 8 } else { 4 + 8 + 4 + 32 };
    per_token * vocab_size as u64
}

/// What is resident beside the weights, and what the run's own heap will take.
pub(crate) fn overhead_bytes(resident_bytes: u64, weights_bytes: u64, sampling_bytes: u64) -> u64 {
    resident_bytes.saturating_sub(weights_bytes).saturating_add(RUN_HEAP_BYTES).saturating_add(sampling_bytes)
}

/// What a prompt wants of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) prompt_tokens: usize,
    pub(crate) max_tokens: Option<usize>,
    /// Longest context the model was trained for.
    pub(crate) context_length: usize,
    /// Rows of a chunk if the user fixed them.
    pub(crate) chunk_rows: Option<usize>,
    /// Whether the logits of every prompt row are wanted, or of the last alone.
    pub(crate) all_logits: bool,
}

impl Needs {
    /// Bytes of KV and of the smallest passes for a context; `None` past 64 bits.
    pub(crate) fn total(&self, profile: &dyn Profile, context_tokens: usize) -> Option<u64> {
        profile.kv_bytes(context_tokens).checked_add(self.smallest_transient(profile, context_tokens))
    }

    /// The most that the smallest chunks, the tail after them and a decode step take at any place in the context.
    pub(crate) fn smallest_transient(&self, profile: &dyn Profile, context_tokens: usize) -> u64 {
        let floor = self.chunk_rows.unwrap_or(FLOOR_ROWS).clamp(1, self.prompt_tokens.max(1));
        let tail = self.prompt_tokens % floor;
        let logit_rows = |rows| if self.all_logits { rows } else { 1 };
        let passes = [(floor, 0), (floor, logit_rows(floor)), (tail, logit_rows(tail)), (1, 1)];
        let of = |(rows, logit_rows)| {
            profile.transient_bytes(&Pass { rows, start: context_tokens.saturating_sub(rows), logit_rows })
        };
        passes.into_iter().filter(|(rows, _)| *rows > 0).map(of).max().unwrap_or(0)
    }
}

/// The chunks of a prompt while so much memory is free for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// Rows of the first one.
    pub(crate) rows: usize,
    /// The most that one of them, or a decode step, takes.
    pub(crate) transient_bytes: u64,
}

impl Needs {
    /// The chunks that prefill takes with `headroom_bytes` for transients, which must cover the smallest ones: each the largest that
    /// fits, as the driver chooses it. Runs of equal chunks are skipped by bisection: a plan costs no less at a later place.
    pub(crate) fn chunks(&self, profile: &dyn Profile, context_tokens: usize, headroom_bytes: u64) -> Chunks {
        let planned = |rows: usize, start: usize| {
            let is_last = start + rows == self.prompt_tokens;
            let logit_rows = if self.all_logits { rows } else { usize::from(is_last) };
            profile.transient_bytes(&Pass { rows, start, logit_rows })
        };
        let limits = ChunkLimits { granule_rows: GRANULE_ROWS, floor_rows: FLOOR_ROWS, ceiling_rows: DEFAULT_MAX_ROWS };
        let fresh = TransientTracker::new(TrackerConfig { min_chunk_rows: FLOOR_ROWS });
        let choose = |start: usize| {
            let rest = self.prompt_tokens - start;
            match self.chunk_rows {
                Some(rows) => rows.clamp(1, rest),
                None => match limits.choose(rest, headroom_bytes, &fresh, |rows| planned(rows, start)) {
                    ChunkChoice::Run { rows, .. } | ChunkChoice::Refuse { rows, .. } => rows,
                },
            }
        };
        let smallest = self.smallest_transient(profile, context_tokens);
        let mut chunks = Chunks { rows: 0, transient_bytes: smallest };
        let mut start = 0;
        while start < self.prompt_tokens {
            let rows = choose(start);
            if start == 0 {
                chunks.rows = rows;
            }
            let place = |count: usize| start + (count - 1) * rows;
            let whole = (self.prompt_tokens - start) / rows;
            let count = longest_that_fits(whole, |count| count == 0 || choose(place(count)) == rows).max(1);
            chunks.transient_bytes = chunks.transient_bytes.max(planned(rows, place(count)));
            start = place(count) + rows;
        }
        chunks
    }
}

/// The largest number up to `limit` for which `fits`, which holds for all smaller ones then; 0 if none.
pub(crate) fn longest_that_fits(limit: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, limit);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_and_biases_are_priced_where_there_are_any() {
        let plain = SamplerParams { temperature: 0.7, top_k: Some(3), min_p: 0.1, seed: 9, ..SamplerParams::default() };
        assert_eq!(sampling_bytes(&plain, 1000), 12_000);
        assert_eq!(sampling_bytes(&SamplerParams { presence_penalty: 0.5, ..plain.clone() }, 1000), 48_000);
        assert_eq!(sampling_bytes(&SamplerParams { logit_bias: [(1, 1.0)].into(), ..plain }, 1000), 48_000);
    }
}
