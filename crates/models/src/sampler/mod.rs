//! Choosing the next token from its logits.
//!
//! The same logits, parameters and seed give the same tokens on every machine: only IEEE additions, multiplications,
//! divisions and comparisons decide, in a fixed order, and ties go to the lowest id.

use std::cmp::Ordering;

/// How tokens are chosen. The default is greedy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerParams {
    /// Logits are divided by it; 0 takes the most likely token always.
    pub temperature: f32,
    /// Only this many of the most likely tokens take part; `None` is all.
    pub top_k: Option<usize>,
    /// Only the most likely tokens whose probabilities first add up to this take part; 1 is all.
    pub top_p: f32,
    /// Start of the random sequence.
    pub seed: u64,
}

impl Default for SamplerParams {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: None, top_p: 1.0, seed: 0 }
    }
}

/// Why parameters or logits were refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "field names say what they hold")]
#[non_exhaustive]
pub enum SamplerError {
    /// Negative, infinite or not a number.
    #[error("temperature is {temperature}, must be a finite number of at least 0")]
    Temperature { temperature: f32 },
    /// No token would take part.
    #[error("top_k is {top_k}, must be at least 1")]
    TopK { top_k: usize },
    /// Not a share of the probability.
    #[error("top_p is {top_p}, must be above 0 and at most 1")]
    TopP { top_p: f32 },
    /// Not a number among the logits: the pass that made them went wrong.
    #[error("logit {id} of {vocab_size} is not a number")]
    NanLogit { id: usize, vocab_size: usize },
    /// There is no token to choose: no logits, or all are minus infinity.
    #[error("none of {vocab_size} logits is above minus infinity")]
    NoCandidate { vocab_size: usize },
}

/// The most likely token, of equals the one with the lowest id.
///
/// # Errors
/// [`SamplerError::NanLogit`], [`SamplerError::NoCandidate`].
pub fn greedy(logits: &[f32]) -> Result<u32, SamplerError> {
    best(logits).map(|(id, _)| id)
}

/// Draws tokens of one sequence, one after another.
///
/// After temperature come `top_k`, then `top_p` over what `top_k` left, then the draw, as in `transformers`. Allocates
/// `8 * logits.len()` bytes at the first draw that is not greedy and keeps them.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplerParams,
    random: SplitMix64,
    candidates: Vec<Candidate>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    logit: f32,
    id: u32,
}

impl Candidate {
    /// Most likely first, of equals the lowest id first: a total order, as no logit is NaN.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.partial_cmp(&self.logit).unwrap_or(Ordering::Equal).then(self.id.cmp(&other.id))
    }
}

impl Sampler {
    /// A sampler at the start of its random sequence.
    ///
    /// # Errors
    /// [`SamplerError::Temperature`], [`SamplerError::TopK`], [`SamplerError::TopP`].
    pub fn new(params: SamplerParams) -> Result<Self, SamplerError> {
        let SamplerParams { temperature, top_k, top_p, seed } = params;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(SamplerError::Temperature { temperature });
        }
        if let Some(top_k @ 0) = top_k {
            return Err(SamplerError::TopK { top_k });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SamplerError::TopP { top_p });
        }
        Ok(Self { params, random: SplitMix64(seed), candidates: Vec::new() })
    }

    /// What it was made with.
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// The next token. Greedy sampling neither copies the logits nor advances the random sequence.
    ///
    /// `logits`: `[vocab_size]`; minus infinity excludes a token.
    ///
    /// # Errors
    /// [`SamplerError::NanLogit`], [`SamplerError::NoCandidate`]; the random sequence is then where it was.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplerError> {
        let (best_id, best_logit) = best(logits)?;
        let SamplerParams { temperature, top_k, top_p, .. } = self.params;
        if temperature == 0.0 || top_k == Some(1) {
            return Ok(best_id);
        }
        let weight = |logit: f32| {
            // Infinite logits are equally likely, and all others then impossible; inf - inf would be NaN.
            if logit == best_logit {
                1.0
            } else {
                exp((f64::from(logit) - f64::from(best_logit)) / f64::from(temperature))
            }
        };
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend((0..).zip(logits).map(|(id, &logit)| Candidate { logit, id }));
        let mut sorted = 0;
        let limit = top_k.map_or(logits.len(), |top_k| top_k.min(logits.len()));
        let total: f64 = if limit < logits.len() {
            sort_head(candidates, &mut sorted, limit);
            candidates.truncate(limit);
            candidates.iter().map(|candidate| weight(candidate.logit)).sum()
        } else {
            logits.iter().map(|&logit| weight(logit)).sum()
        };
        // The head is sorted only as far as the walk gets: a few tokens of tens of thousands.
        let nucleus = self.head_until(f64::from(top_p) * total, &mut sorted, weight);
        let drawn = self.random.uniform() * if top_p < 1.0 { nucleus.weight } else { total };
        let chosen = self.head_until_above(drawn, nucleus.tokens, &mut sorted, weight);
        Ok(self.candidates[chosen].id)
    }

    /// The smallest head whose weights add up to `share`; all candidates if rounding keeps them below it.
    fn head_until(&mut self, share: f64, sorted: &mut usize, weight: impl Fn(f32) -> f64) -> Head {
        let mut head = Head { tokens: self.candidates.len(), weight: 0.0 };
        if self.params.top_p == 1.0 {
            return head;
        }
        for at in 0..self.candidates.len() {
            sort_head(&mut self.candidates, sorted, at + 1);
            head.weight += weight(self.candidates[at].logit);
            if head.weight >= share {
                head.tokens = at + 1;
                break;
            }
        }
        head
    }

    /// Index of the candidate at which the running sum of weights first exceeds `drawn`, within the first `tokens`.
    fn head_until_above(
        &mut self,
        drawn: f64,
        tokens: usize,
        sorted: &mut usize,
        weight: impl Fn(f32) -> f64,
    ) -> usize {
        let mut sum = 0.0;
        let mut last_possible = 0;
        for at in 0..tokens {
            sort_head(&mut self.candidates, sorted, at + 1);
            let weight = weight(self.candidates[at].logit);
            if weight == 0.0 {
                break;
            }
            last_possible = at;
            sum += weight;
            if sum > drawn {
                break;
            }
        }
        last_possible
    }
}

struct Head {
    tokens: usize,
    weight: f64,
}

/// Sorts at least the first `wanted` candidates into place, given that the first `sorted` are.
fn sort_head(candidates: &mut [Candidate], sorted: &mut usize, wanted: usize) {
    if *sorted >= wanted {
        return;
    }
    let rest = &mut candidates[*sorted..];
    // Growing sixteenfold keeps the number of selections, each linear, to a handful.
    let count = (wanted - *sorted).max(*sorted * 15).max(64).min(rest.len());
    if count < rest.len() {
        rest.select_nth_unstable_by(count, Candidate::order);
    }
    rest[..count].sort_unstable_by(Candidate::order);
    *sorted += count;
}

fn best(logits: &[f32]) -> Result<(u32, f32), SamplerError> {
    let vocab_size = logits.len();
    let mut best = None;
    let mut best_logit = f32::NEG_INFINITY;
    for (id, &logit) in (0u32..).zip(logits) {
        if logit.is_nan() {
            return Err(SamplerError::NanLogit { id: id as usize, vocab_size });
        }
        if logit > best_logit {
            (best, best_logit) = (Some(id), logit);
        }
    }
    best.map(|id| (id, best_logit)).ok_or(SamplerError::NoCandidate { vocab_size })
}

/// `e^x` for `x <= 0`, within 2^-50, the same bits everywhere: libraries differ in the last bit.
///
/// `x = k ln 2 + r` with `|r| <= ln 2 / 2`, then the Taylor series of `e^r` to degree 13, whose rest is below 2^-57.
fn exp(x: f64) -> f64 {
    // ln 2 in two parts; the high one has 21 trailing zero bits, so that its product with `k` is exact.
    const LN2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    if x < -700.0 {
        return 0.0;
    }
    let k = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = x - k * LN2_HIGH - k * LN2_LOW;
    let mut sum = 1.0;
    for divisor in (1..=13).rev() {
        sum = 1.0 + sum * r / f64::from(divisor);
    }
    #[expect(clippy::cast_possible_truncation, reason = "an integer from -1010 to 0")]
    let exponent = (1023 + k as i64) as u64;
    sum * f64::from_bits(exponent << 52)
}

/// SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 17): one 64-bit state,
/// every seed a good one, and a sequence that is the same for ever.
#[derive(Debug, Clone)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A multiple of 2^-53 in [0, 1), all equally likely.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * f64::from_bits((1023 - 53) << 52)
    }
}

#[cfg(test)]
mod tests;
