//! Prices that a run and its estimate share: one function each, so that they cannot drift apart.

use plimsoll_memguard::{ChunkChoice, ChunkLimits, Pass, Profile, TrackerConfig, TransientTracker};
use plimsoll_models::{CpuProfile, sampler::SamplerParams};
use plimsoll_prefill::{ChunkSize, DEFAULT_MAX_ROWS, GRANULE_ROWS, PrefillReport};
use std::num::NonZeroUsize;

/// Tokens of an answer where the user does not say, if they fit.
pub(crate) const DEFAULT_MAX_TOKENS: usize = 1024;

/// Most tokens of a prompt with its answer: positions are 32-bit numbers.
pub(crate) const MAX_CONTEXT_TOKENS: usize = u32::MAX as usize;

/// Rows of the smallest chunk that prefill may be cut down to.
pub(crate) const FLOOR_ROWS: usize = 64;

/// Heap that a run needs beside the arena, the KV and what grows with the vocabulary: threads' stacks and queues, block tables, and the beginning of
/// what grows with prompt and answer.
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

/// An answer's ids and, at eight bytes of text a token, its text, in vectors that double.
const ANSWER_BYTES_PER_TOKEN: u64 = 2 * (4 + 8);

/// So much of what grows with prompt and answer is part of [`RUN_HEAP_BYTES`]: some 350 chunks, or 5,000 tokens of an answer.
const GROWTH_IN_RUN_HEAP_BYTES: u64 = 128 << 10;

/// What is resident beside the weights, and what the run's own heap will take.
pub(crate) fn overhead_bytes(resident_bytes: u64, weights_bytes: u64, sampling_bytes: u64) -> u64 {
    resident_bytes.saturating_sub(weights_bytes).saturating_add(RUN_HEAP_BYTES).saturating_add(sampling_bytes)
}

/// Heap that packing weights takes beside them: what the threads that pack touch of their stacks and of the allocator's pools.
const LOADING_HEAP_BYTES: u64 = 512 << 10;

/// The same for each thread.
const LOADING_HEAP_BYTES_PER_THREAD: u64 = 64 << 10;

/// The same where rows are quantized on their way: a piece of 2^18 elements, as f32 and quantized.
const QUANTIZING_BYTES: u64 = 3 << 19;

/// What is resident beside the weights at the worst moment of loading them, of which `resident_bytes` are there before.
pub(crate) fn loading_bytes(resident_bytes: u64, threads: usize, quantizes: bool) -> u64 {
    let heap_bytes = LOADING_HEAP_BYTES + LOADING_HEAP_BYTES_PER_THREAD * threads as u64;
    resident_bytes.saturating_add(heap_bytes).saturating_add(if quantizes { QUANTIZING_BYTES } else { 0 })
}

/// A profile whose keys and values can be priced for chunks of any size: layers with a sliding window hold their window and one chunk.
pub(crate) trait ChunkPriced: Profile {
    /// [`Profile::kv_bytes`] where no chunk has more than `max_rows` rows.
    fn kv_bytes_in_chunks(&self, context_tokens: usize, max_rows: usize) -> u64;
}

impl ChunkPriced for CpuProfile<'_> {
    fn kv_bytes_in_chunks(&self, context_tokens: usize, max_rows: usize) -> u64 {
        self.with_max_chunk_rows(max_rows).kv_bytes(context_tokens)
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
    /// Tokens at the prompt's beginning that go through no chunk.
    pub(crate) synthetic_tokens: usize,
}

impl Needs {
    /// Tokens of a context, prompt and answer, whose keys and values are held at its end: no pass reads the last one of an answer.
    pub(crate) const fn kv_tokens(&self, context_tokens: usize) -> usize {
        match self.max_tokens {
            Some(0) => context_tokens,
            _ => context_tokens.saturating_sub(1),
        }
    }

    /// The longest context of which so many tokens have keys and values.
    pub(crate) const fn context_of(&self, kv_tokens: usize) -> usize {
        match self.max_tokens {
            Some(0) => kv_tokens,
            _ => kv_tokens.saturating_add(1),
        }
    }

    /// Bytes of KV and of the smallest passes for a context, in chunks of the fewest rows; `None` past 64 bits.
    pub(crate) fn total(&self, profile: &dyn ChunkPriced, context_tokens: usize) -> Option<u64> {
        let kv_bytes = profile.kv_bytes_in_chunks(self.kv_tokens(context_tokens), self.floor_rows());
        kv_bytes
            .checked_add(self.smallest_transient(profile, context_tokens))?
            .checked_add(self.heap_bytes(context_tokens))
    }

    /// Heap that grows with a context: the reports of all chunks of a prompt, ids and text of an answer.
    pub(crate) fn heap_bytes(&self, context_tokens: usize) -> u64 {
        let answer = match self.max_tokens {
            Some(max_tokens) => max_tokens.min(context_tokens),
            None => context_tokens.saturating_sub(self.prompt_tokens),
        };
        let computed = (context_tokens - answer).saturating_sub(self.synthetic_tokens);
        let chunk = self.chunk_rows.and_then(NonZeroUsize::new).map_or_else(ChunkSize::default, ChunkSize::Fixed);
        let answer_bytes = ANSWER_BYTES_PER_TOKEN.saturating_mul(answer as u64);
        let bytes = PrefillReport::most_bytes(computed, chunk).saturating_add(answer_bytes);
        bytes.saturating_sub(GROWTH_IN_RUN_HEAP_BYTES)
    }

    /// Rows of the smallest chunk.
    pub(crate) fn floor_rows(&self) -> usize {
        self.chunk_rows.unwrap_or(FLOOR_ROWS)
    }

    /// The most rows, fewer than those that were fixed, in chunks of which `free_bytes` pay for a context; `None` if there are none, or automatic
    /// chunks found out already.
    pub(crate) fn largest_chunk(
        &self,
        profile: &dyn ChunkPriced,
        context_tokens: usize,
        free_bytes: u64,
    ) -> Option<usize> {
        let fits = |rows: usize| {
            let total = Self { chunk_rows: Some(rows), ..*self }.total(profile, context_tokens);
            total.is_some_and(|bytes| bytes <= free_bytes)
        };
        let rows = longest_that_fits(self.chunk_rows? - 1, |rows| rows == 0 || fits(rows));
        (rows > 0).then_some(rows)
    }

    /// The most rows of a chunk that KV is priced for where `free_bytes` pay for a context: those that were fixed, or the most at which one such
    /// chunk fits beside the KV, and more where KV costs no more for it. The fewest if nothing fits.
    pub(crate) fn max_chunk_rows(&self, profile: &dyn ChunkPriced, context_tokens: usize, free_bytes: u64) -> usize {
        if let Some(rows) = self.chunk_rows {
            return rows;
        }
        let heap_bytes = self.heap_bytes(context_tokens);
        let kv_bytes = |rows: usize| profile.kv_bytes_in_chunks(self.kv_tokens(context_tokens), rows);
        let fits = |rows: usize| {
            let transient_bytes = self.transient_in_chunks(profile, context_tokens, rows);
            kv_bytes(rows)
                .checked_add(transient_bytes)
                .is_some_and(|bytes| bytes <= free_bytes.saturating_sub(heap_bytes))
        };
        let most = DEFAULT_MAX_ROWS / GRANULE_ROWS;
        let rows = longest_that_fits(most, |count| count == 0 || fits(count * GRANULE_ROWS)).max(1) * GRANULE_ROWS;
        let costs_no_more = |count: usize| count == 0 || kv_bytes(count * GRANULE_ROWS) <= kv_bytes(rows);
        longest_that_fits(most, costs_no_more) * GRANULE_ROWS
    }

    /// The most that the smallest chunks, the tail after them and a decode step take at any place in the context.
    pub(crate) fn smallest_transient(&self, profile: &dyn Profile, context_tokens: usize) -> u64 {
        self.transient_in_chunks(profile, context_tokens, self.floor_rows())
    }

    /// The same in chunks of `rows` rows.
    fn transient_in_chunks(&self, profile: &dyn Profile, context_tokens: usize, rows: usize) -> u64 {
        let floor = rows.clamp(1, self.prompt_tokens.max(1));
        let tail = self.prompt_tokens % floor;
        let logit_rows = |rows| if self.all_logits { rows } else { 1 };
        let passes = [(floor, 0), (floor, logit_rows(floor)), (tail, logit_rows(tail)), (1, 1)];
        let of = |(rows, logit_rows)| {
            let start = self.kv_tokens(context_tokens).saturating_sub(rows);
            profile.transient_bytes(&Pass { rows, start, logit_rows })
        };
        passes.into_iter().filter(|(rows, _)| *rows > 0).map(of).max().unwrap_or(0)
    }

    /// The chunks that prefill takes with `headroom_bytes` for transients, which must cover the smallest ones: each the largest that
    /// fits, up to `max_rows` rows, as the driver chooses it. Runs of equal chunks are skipped by bisection: a plan costs no less at a later
    /// place.
    pub(crate) fn chunks(
        &self,
        profile: &dyn Profile,
        context_tokens: usize,
        max_rows: usize,
        headroom_bytes: u64,
    ) -> Chunks {
        let planned = |rows: usize, start: usize| {
            let is_last = start + rows == self.prompt_tokens;
            let logit_rows = if self.all_logits { rows } else { usize::from(is_last) };
            profile.transient_bytes(&Pass { rows, start, logit_rows })
        };
        let limits = ChunkLimits { granule_rows: GRANULE_ROWS, floor_rows: FLOOR_ROWS, ceiling_rows: max_rows };
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

    /// 10 bytes of KV a token of a context, and of a window of 100 tokens with the rows of a chunk 1,000 each; 100 a row of a pass.
    struct Windowed {
        window_bytes: u64,
    }

    impl Profile for Windowed {
        fn weights_bytes(&self) -> u64 {
            0
        }

        fn kv_bytes(&self, context_tokens: usize) -> u64 {
            self.kv_bytes_in_chunks(context_tokens, usize::MAX)
        }

        fn transient_bytes(&self, pass: &Pass) -> u64 {
            100 * pass.rows as u64
        }
    }

    impl ChunkPriced for Windowed {
        fn kv_bytes_in_chunks(&self, context_tokens: usize, max_rows: usize) -> u64 {
            let windowed_tokens = context_tokens.min(max_rows.saturating_add(100)) as u64;
            10 * context_tokens as u64 + self.window_bytes * windowed_tokens
        }
    }

    fn needs(chunk_rows: Option<usize>) -> Needs {
        Needs {
            prompt_tokens: 2_000,
            max_tokens: Some(1),
            context_length: 8_192,
            chunk_rows,
            all_logits: false,
            synthetic_tokens: 0,
        }
    }

    #[test]
    fn windows_are_priced_for_the_most_rows_of_which_a_chunk_fits_beside_them() {
        let windowed = Windowed { window_bytes: 1_000 };
        let price = |rows: u64| 10 * 2_000 + 1_000 * (rows + 100) + 100 * rows;
        let rows = |free_bytes| needs(None).max_chunk_rows(&windowed, 2_001, free_bytes);
        assert_eq!((rows(u64::MAX), rows(price(512)), rows(price(512) - 1)), (512, 512, 448));
        assert_eq!((rows(price(192)), rows(price(192) - 1), rows(price(64)), rows(0)), (192, 128, 64, 64));
        assert_eq!(needs(Some(17)).max_chunk_rows(&windowed, 2_001, 0), 17, "what was fixed stays");
    }

    #[test]
    fn the_last_token_of_an_answer_has_no_keys_and_values() {
        let plain = Windowed { window_bytes: 0 };
        let total = |max_tokens, context| Needs { max_tokens, ..needs(None) }.total(&plain, context).unwrap();
        assert_eq!(total(Some(0), 2_000), 10 * 2_000 + 6_400);
        assert_eq!(total(Some(1), 2_001), total(Some(0), 2_000));
        assert_eq!((total(Some(9), 2_009), total(None, 2_009)), (10 * 2_008 + 6_400, 10 * 2_008 + 6_400));
        for max_tokens in [Some(0), Some(1), None] {
            let needs = Needs { max_tokens, ..needs(None) };
            assert_eq!(needs.kv_tokens(needs.context_of(100)), 100);
        }
    }

    #[test]
    fn what_grows_with_prompt_and_answer_is_priced_where_it_is_much() {
        let of = |prompt_tokens: usize, max_tokens, chunk_rows, synthetic_tokens| {
            let needs = Needs { prompt_tokens, max_tokens, synthetic_tokens, ..needs(chunk_rows) };
            needs.heap_bytes(prompt_tokens + max_tokens.unwrap_or(1_000))
        };
        assert_eq!((of(8_000, Some(1_000), None, 0), of(200, None, Some(1), 0)), (0, 0));
        let chunk_bytes = size_of::<plimsoll_prefill::ChunkReport>() as u64;
        assert_eq!(of(100_000, Some(0), Some(1), 0), 100_000 * chunk_bytes - (128 << 10));
        assert_eq!(of(100_000, Some(0), Some(1), 60_000), 40_000 * chunk_bytes - (128 << 10));
        assert_eq!(of(64_000, Some(0), None, 0), 1_000 * chunk_bytes - (128 << 10));
        assert_eq!(of(1, Some(100_000), None, 0), 2_400_000 + chunk_bytes - (128 << 10));
        let needs = Needs { max_tokens: None, ..needs(Some(1)) };
        assert!((1..9_000).all(|context| needs.heap_bytes(context) <= needs.heap_bytes(context + 1)));
    }

    #[test]
    fn without_windows_nothing_is_gained_by_a_lower_most() {
        let plain = Windowed { window_bytes: 0 };
        assert_eq!(needs(None).max_chunk_rows(&plain, 2_001, 10 * 2_000 + 6_400), 512);
    }

    #[test]
    fn automatic_chunks_need_no_more_than_chunks_of_64_rows() {
        let windowed = Windowed { window_bytes: 1_000 };
        let total = |chunk_rows| needs(chunk_rows).total(&windowed, 2_001).unwrap();
        assert_eq!(total(None), total(Some(64)));
        assert!(total(Some(512)) > total(None));
    }

    #[test]
    fn loading_takes_what_is_there_and_a_little_for_each_thread() {
        assert_eq!(loading_bytes(1_000, 2, false), 1_000 + (512 << 10) + 2 * (64 << 10));
        assert_eq!(loading_bytes(0, 1, true) - loading_bytes(0, 1, false), 3 << 19);
    }
}
