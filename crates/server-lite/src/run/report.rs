//! The JSON object of `plimsoll run --json`.

use plimsoll_memguard::Pressure;
use serde::{Serialize, Serializer};

/// Everything a script may want to know of a run; field names are part of the binary's contract.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    pub(super) model: String,
    pub(super) prompt_tokens: usize,
    pub(super) tokens: Vec<u32>,
    pub(super) text: String,
    /// `stop`, `length`, `cancelled`, or `memory`: the machine was full.
    pub(super) finish_reason: &'static str,
    /// SHA-256 of the last prompt row's logits, little-endian f32.
    pub(super) first_logits_sha256: String,
    pub(super) load: Load,
    #[serde(serialize_with = "one_by_one")]
    pub(super) chunks: &'a [plimsoll_prefill::ChunkReport],
    pub(super) prefill: Prefill,
    pub(super) decode: Speed,
    pub(super) memory: Memory,
    pub(super) routes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChunkReport {
    pub(super) start: usize,
    pub(super) rows: usize,
    pub(super) planned_bytes: u64,
    /// Absent where the platform tells nothing.
    pub(super) measured_bytes: Option<u64>,
    /// Plan, charge and slack: what was reserved for growth beside keys and values while the chunk ran.
    pub(super) predicted_bytes: u64,
    /// What the tracker expected beyond the plan, and the ledger gave.
    pub(super) charged_bytes: u64,
    /// What was left of the overhead reserved for first touches.
    pub(super) slack_bytes: u64,
    /// Growth of the footprint beside keys and values; absent where the platform tells nothing.
    pub(super) growth_bytes: Option<i64>,
    /// What of it is neither keys and values nor the arena.
    pub(super) unexplained_bytes: Option<i64>,
    /// Keys and values held after the chunk.
    pub(super) kv_bytes: u64,
    /// After the drain; absent where the platform tells nothing.
    pub(super) footprint_bytes: Option<u64>,
    /// `nominal`, `soft` or `hard`.
    pub(super) pressure: &'static str,
    pub(super) seconds: f64,
}

/// Everything before the first chunk: model file, tokenizer, prompt, weights, admission; fetching a model that is not there yet too.
#[derive(Debug, Serialize)]
pub(super) struct Load {
    pub(super) seconds: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Prefill {
    /// Tokens that came from the prefix cache; those that were computed are `tokens`.
    pub(super) cached_tokens: usize,
    #[serde(flatten)]
    pub(super) speed: Speed,
}

#[derive(Debug, Serialize)]
pub(super) struct Speed {
    pub(super) tokens: usize,
    pub(super) seconds: f64,
    pub(super) tokens_per_second: f64,
}

impl Speed {
    pub(super) fn new(tokens: usize, seconds: f64) -> Self {
        // No time, no speed: JSON has no infinity.
        let tokens_per_second = if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 };
        Self { tokens, seconds, tokens_per_second }
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Memory {
    pub(super) weights_bytes: u64,
    pub(super) kv_bytes: u64,
    pub(super) overhead_bytes: u64,
    pub(super) planned_peak_bytes: u64,
    pub(super) measured_peak_bytes: u64,
    /// Absent where the platform tells nothing.
    pub(super) footprint_peak_bytes: Option<u64>,
    /// Absent where neither the user nor the machine sets a limit.
    pub(super) budget_bytes: Option<u64>,
    /// Resident set after load, file pages included; absent where the platform does not tell.
    pub(super) resident_after_load_bytes: Option<u64>,
}

/// The level in a report.
pub(super) fn pressure_name(pressure: Pressure) -> &'static str {
    match pressure {
        Pressure::Nominal => "nominal",
        Pressure::Soft => "soft",
        Pressure::Hard => "hard",
    }
}

/// Without a second list of them.
fn one_by_one<S: Serializer>(chunks: &&[plimsoll_prefill::ChunkReport], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(chunks.iter().map(ChunkReport::from))
}

impl From<&plimsoll_prefill::ChunkReport> for ChunkReport {
    fn from(chunk: &plimsoll_prefill::ChunkReport) -> Self {
        Self {
            start: chunk.start,
            rows: chunk.rows,
            planned_bytes: chunk.planned_bytes,
            measured_bytes: chunk.measured_bytes,
            predicted_bytes: chunk.predicted_bytes(),
            charged_bytes: chunk.charged_bytes,
            slack_bytes: chunk.slack_bytes,
            growth_bytes: chunk.growth_bytes,
            unexplained_bytes: chunk.unexplained_bytes,
            kv_bytes: chunk.held_after.kv_bytes,
            footprint_bytes: chunk.drained.or(chunk.after).and_then(|sample| sample.footprint),
            pressure: pressure_name(chunk.pressure),
            seconds: chunk.seconds,
        }
    }
}
