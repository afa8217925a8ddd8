//! Choosing the next token from its logits.
//!
//! The same logits, parameters, history and seed give the same tokens on every machine: only IEEE additions,
//! multiplications, divisions and comparisons decide, in a fixed order, and ties go to the lowest id.
//!
//! The order is that of `transformers` (`GenerationMixin._get_logits_processor`, 5.x):
//!
//! 1. `logit_bias` is added,
//! 2. `repetition_penalty` over the tokens of prompt and answer,
//! 3. `presence_penalty` and `frequency_penalty` over the tokens of the answer (vLLM's and the OpenAI API's; `transformers` has neither),
//! 4. at temperature 0 the most likely token is taken, otherwise logits are divided by `temperature`,
//! 5. `top_k`, 6. `top_p`, 7. `min_p`, 8. `typical_p`, each over what the one before left,
//! 9. one token is drawn.
//!
//! One difference: of equal logits at the border of a filter, those with the lowest ids stay and the filter keeps no more than it must.

mod history;
mod params;
mod random;
mod stop;

pub use params::{SamplerError, SamplerParams};
pub use stop::{StopError, StopMatcher};

use std::cmp::Ordering;

use history::History;
use random::{SplitMix64, exp, exp_each};

/// The most likely token, of equals the one with the lowest id.
///
/// # Errors
/// [`SamplerError::NanLogit`], [`SamplerError::NoCandidate`].
pub fn greedy(logits: &[f32]) -> Result<u32, SamplerError> {
    best(logits).map(|(id, _)| id)
}

/// Draws tokens of one sequence, one after another, and remembers them for the penalties.
///
/// Allocates `8 * logits.len()` bytes at the first draw that is not greedy, `4 * logits.len()` at the first one with a bias
/// or penalty, and keeps them.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplerParams,
    random: SplitMix64,
    history: History,
    /// Logits after bias and penalties.
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler at the start of its random sequence, with no prompt yet.
    ///
    /// # Errors
    /// As [`SamplerParams::check`].
    pub fn new(params: SamplerParams) -> Result<Self, SamplerError> {
        params.check()?;
        let random = SplitMix64::new(params.seed);
        Ok(Self { params, random, history: History::default(), adjusted: Vec::new(), candidates: Vec::new() })
    }

    /// What it was made with.
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// Adds tokens of the prompt to what `repetition_penalty` counts. Costs nothing when there is no penalty.
    pub fn observe_prompt(&mut self, tokens: &[u32]) {
        if self.params.has_penalty() {
            self.history.add_prompt(tokens);
        }
    }

    /// The next token, which the penalties count from then on. Greedy sampling does not advance the random sequence.
    ///
    /// `logits`: `[vocab_size]`; minus infinity excludes a token.
    ///
    /// # Errors
    /// [`SamplerError::NanLogit`], [`SamplerError::NoCandidate`], [`SamplerError::BiasPastVocabulary`]; the sampler is then as it was.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplerError> {
        let chosen = self.with_adjusted(logits, Self::choose)?;
        if self.params.has_penalty() {
            self.history.add_answer(chosen);
        }
        Ok(chosen)
    }

    /// The tokens that [`sample`](Self::sample) would now draw from, with their probabilities, in the order of the draw: most
    /// likely first, with `typical_p` most typical first. Changes nothing.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn distribution(&mut self, logits: &[f32]) -> Result<Vec<(u32, f64)>, SamplerError> {
        self.with_adjusted(logits, |sampler, logits| {
            let (best_id, best_logit) = best(logits)?;
            if sampler.is_greedy() {
                return Ok(vec![(best_id, 1.0)]);
            }
            let scale = Scale { best: best_logit, temperature: f64::from(sampler.params.temperature) };
            let mut kept = sampler.narrow(logits, scale);
            kept.sort(&mut sampler.candidates, kept.tokens);
            let weights = sampler.candidates[..kept.tokens].iter().map(|one| (one.id, scale.weight(one.logit)));
            Ok(weights.filter(|&(_, weight)| weight > 0.0).map(|(id, weight)| (id, weight / kept.total)).collect())
        })
    }

    /// Calls `use_logits` with the logits after bias and penalties; without these, with `logits` themselves.
    fn with_adjusted<T>(
        &mut self,
        logits: &[f32],
        use_logits: impl FnOnce(&mut Self, &[f32]) -> Result<T, SamplerError>,
    ) -> Result<T, SamplerError> {
        if self.params.logit_bias.is_empty() && !self.params.has_penalty() {
            return use_logits(self, logits);
        }
        self.params.check_vocabulary(logits.len())?;
        let mut adjusted = std::mem::take(&mut self.adjusted);
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        for (&id, &bias) in &self.params.logit_bias {
            let logit = &mut adjusted[id as usize];
            // An infinite logit less an infinite bias would be NaN.
            *logit = if bias == f32::NEG_INFINITY && !logit.is_nan() { bias } else { *logit + bias };
        }
        if self.params.has_penalty() {
            self.history.penalize(&mut adjusted, &self.params);
        }
        let result = use_logits(self, &adjusted);
        self.adjusted = adjusted;
        result
    }

    fn is_greedy(&self) -> bool {
        self.params.temperature == 0.0 || self.params.top_k == Some(1)
    }

    fn choose(&mut self, logits: &[f32]) -> Result<u32, SamplerError> {
        let (best_id, best_logit) = best(logits)?;
        if self.is_greedy() {
            return Ok(best_id);
        }
        let scale = Scale { best: best_logit, temperature: f64::from(self.params.temperature) };
        let mut kept = self.narrow(logits, scale);
        let drawn = self.random.uniform() * kept.total;
        let chosen = kept.reach_above(&mut self.candidates, drawn);
        Ok(self.candidates[chosen].id)
    }

    /// Puts what takes part in the draw at the front of the candidates.
    ///
    /// The head is sorted only as far as a filter looks: a few tokens of tens of thousands.
    fn narrow(&mut self, logits: &[f32], scale: Scale) -> Kept {
        let SamplerParams { top_k, top_p, min_p, typical_p, .. } = self.params;
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend((0..).zip(logits).map(|(id, &logit)| Candidate { logit, id }));
        let limit = top_k.map_or(logits.len(), |top_k| top_k.min(logits.len()));
        let mut kept = Kept { tokens: limit, total: 0.0, sorted: 0, order: Order::Likely, scale };
        kept.total = if limit < logits.len() {
            kept.sort(candidates, limit);
            candidates[..limit].iter().map(|candidate| scale.weight(candidate.logit)).sum()
        } else {
            scale.total(logits)
        };
        if top_p < 1.0 {
            kept.cut_at_share(candidates, f64::from(top_p));
        }
        if min_p > 0.0 {
            kept.cut_below(candidates, f64::from(min_p));
        }
        if typical_p < 1.0 {
            candidates.truncate(kept.tokens);
            kept.order_by_typicality(candidates);
            kept.cut_at_share(candidates, f64::from(typical_p));
        }
        kept
    }
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    logit: f32,
    id: u32,
}

/// From logits to weights relative to the most likely token, which has 1.
#[derive(Debug, Clone, Copy)]
struct Scale {
    best: f32,
    temperature: f64,
}

impl Scale {
    fn exponent(self, logit: f32) -> f64 {
        // Infinite logits are equally likely, and all others then impossible; inf - inf would be NaN.
        if logit == self.best { 0.0 } else { (f64::from(logit) - f64::from(self.best)) / self.temperature }
    }

    fn weight(self, logit: f32) -> f64 {
        exp(self.exponent(logit))
    }

    /// Sum of all weights, in ascending order.
    fn total(self, logits: &[f32]) -> f64 {
        let (chunks, rest) = logits.as_chunks::<16>();
        let mut total = 0.0;
        for chunk in chunks {
            let mut weights = chunk.map(|logit| self.exponent(logit));
            exp_each(&mut weights);
            weights.iter().for_each(|weight| total += weight);
        }
        rest.iter().for_each(|&logit| total += self.weight(logit));
        total
    }
}

#[derive(Debug, Clone, Copy)]
enum Order {
    /// Most likely first.
    Likely,
    /// Exponent nearest to the expected one first. Surprise is minus the exponent plus a constant, which cancels.
    Typical { expected: f64 },
}

/// The candidates that take part: the first `tokens` by `order`, of which the first `sorted` are in their places.
#[derive(Debug)]
struct Kept {
    tokens: usize,
    /// Sum of their weights.
    total: f64,
    sorted: usize,
    order: Order,
    scale: Scale,
}

impl Kept {
    /// A total order, as no logit is NaN: of equals the lowest id is first.
    fn compare(&self, a: &Candidate, b: &Candidate) -> Ordering {
        let order = match self.order {
            Order::Likely => b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal),
            Order::Typical { expected } => {
                let distance = |candidate: &Candidate| (self.scale.exponent(candidate.logit) - expected).abs();
                distance(a).total_cmp(&distance(b))
            }
        };
        order.then(a.id.cmp(&b.id))
    }

    /// Sorts at least the first `wanted` candidates into place.
    fn sort(&mut self, candidates: &mut [Candidate], wanted: usize) {
        if self.sorted >= wanted {
            return;
        }
        let rest = &mut candidates[self.sorted..];
        // Growing sixteenfold keeps the number of selections, each linear, to a handful.
        let count = (wanted - self.sorted).max(self.sorted * 15).max(64).min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by(count, |a, b| self.compare(a, b));
        }
        rest[..count].sort_unstable_by(|a, b| self.compare(a, b));
        self.sorted += count;
    }

    /// Keeps the smallest head whose weights add up to `share` of the total; everything if rounding keeps them below it.
    fn cut_at_share(&mut self, candidates: &mut [Candidate], share: f64) {
        let wanted = share * self.total;
        let mut sum = 0.0;
        for at in 0..self.tokens {
            self.sort(candidates, at + 1);
            sum += self.scale.weight(candidates[at].logit);
            if sum >= wanted {
                self.tokens = at + 1;
                break;
            }
        }
        self.total = sum;
    }

    /// Keeps the candidates whose weight is at least `fraction`; the first has weight 1.
    fn cut_below(&mut self, candidates: &mut [Candidate], fraction: f64) {
        let mut sum = 0.0;
        for at in 0..self.tokens {
            self.sort(candidates, at + 1);
            let weight = self.scale.weight(candidates[at].logit);
            if weight < fraction {
                self.tokens = at;
                break;
            }
            sum += weight;
        }
        self.total = sum;
    }

    /// Changes the order of `candidates`, which are exactly the kept ones.
    fn order_by_typicality(&mut self, candidates: &mut [Candidate]) {
        // Ascending ids make the sum one of a fixed order, whatever the selections before left.
        candidates.sort_unstable_by_key(|candidate| candidate.id);
        let mut expected = 0.0;
        for candidate in &*candidates {
            let weight = self.scale.weight(candidate.logit);
            // A token of weight 0 may have an infinite exponent.
            if weight > 0.0 {
                expected += weight * self.scale.exponent(candidate.logit);
            }
        }
        self.order = Order::Typical { expected: expected / self.total };
        self.sorted = 0;
    }

    /// Index of the candidate at which the running sum of weights first exceeds `drawn`.
    fn reach_above(&mut self, candidates: &mut [Candidate], drawn: f64) -> usize {
        let mut sum = 0.0;
        let mut last_possible = 0;
        for at in 0..self.tokens {
            self.sort(candidates, at + 1);
            let weight = self.scale.weight(candidates[at].logit);
            if weight > 0.0 {
                last_possible = at;
                sum += weight;
                if sum > drawn {
                    break;
                }
            } else if matches!(self.order, Order::Likely) {
                break;
            }
        }
        last_possible
    }
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

#[cfg(test)]
mod tests;
