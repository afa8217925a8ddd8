//! How tokens are chosen, and what is refused.

use std::collections::BTreeMap;

/// How tokens are chosen. The default is greedy and changes no logit.
///
/// ```
/// use plimsoll_models::sampler::SamplerParams;
///
/// let params = SamplerParams { temperature: 0.7, min_p: 0.05, repetition_penalty: 1.1, ..SamplerParams::default() };
/// params.check()?;
/// # Ok::<(), plimsoll_models::sampler::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerParams {
    /// Logits are divided by it; 0 takes the most likely token always.
    pub temperature: f32,
    /// Only this many of the most likely tokens take part; `None` is all.
    pub top_k: Option<usize>,
    /// Only the most likely tokens whose probabilities first add up to this take part; 1 is all.
    pub top_p: f32,
    /// Only tokens at least this fraction as likely as the most likely one take part; 0 is all. Nguyen et al. 2024, arXiv:2407.01082.
    pub min_p: f32,
    /// Only the tokens whose surprise is nearest to the expected one, until their probabilities first add up to this, take part;
    /// 1 is all. Meister et al. 2022, arXiv:2202.00666.
    pub typical_p: f32,
    /// A positive logit of a token that the prompt or the answer holds is divided by it, a negative one multiplied; 1 changes
    /// nothing. Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the sign rule of `transformers`.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of each token that the answer holds; 0 changes nothing.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token as often as the answer holds it; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens; minus infinity excludes one.
    pub logit_bias: BTreeMap<u32, f32>,
    /// Start of the random sequence.
    pub seed: u64,
}

impl Default for SamplerParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: 0,
        }
    }
}

impl SamplerParams {
    /// Whether every value is in its range: what [`Sampler::new`](super::Sampler::new) asks too.
    ///
    /// # Errors
    /// The variant of [`SamplerError`] that is named after the value.
    pub fn check(&self) -> Result<(), SamplerError> {
        let &Self { temperature, top_k, top_p, min_p, typical_p, repetition_penalty, .. } = self;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(SamplerError::Temperature { temperature });
        }
        if let Some(top_k @ 0) = top_k {
            return Err(SamplerError::TopK { top_k });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(SamplerError::TopP { top_p });
        }
        if !(0.0..=1.0).contains(&min_p) {
            return Err(SamplerError::MinP { min_p });
        }
        if !(typical_p > 0.0 && typical_p <= 1.0) {
            return Err(SamplerError::TypicalP { typical_p });
        }
        if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
            return Err(SamplerError::RepetitionPenalty { repetition_penalty });
        }
        let finite = |name, penalty: f32| match penalty.is_finite() {
            true => Ok(()),
            false => Err(SamplerError::Penalty { name, penalty }),
        };
        finite("presence_penalty", self.presence_penalty)?;
        finite("frequency_penalty", self.frequency_penalty)?;
        match self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || **bias == f32::INFINITY) {
            Some((&id, &bias)) => Err(SamplerError::Bias { id, bias }),
            None => Ok(()),
        }
    }

    /// Whether every token of `logit_bias` is one of a vocabulary. Sampling checks it too; a caller may want to know before prefill.
    ///
    /// # Errors
    /// [`SamplerError::BiasPastVocabulary`].
    pub fn check_vocabulary(&self, vocab_size: usize) -> Result<(), SamplerError> {
        match self.logit_bias.last_key_value() {
            Some((&id, _)) if id as usize >= vocab_size => Err(SamplerError::BiasPastVocabulary { id, vocab_size }),
            _ => Ok(()),
        }
    }

    /// Whether what was said before changes the logits.
    pub(super) fn has_penalty(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
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
    /// Not a fraction.
    #[error("min_p is {min_p}, must be at least 0 and at most 1")]
    MinP { min_p: f32 },
    /// Not a share of the probability.
    #[error("typical_p is {typical_p}, must be above 0 and at most 1")]
    TypicalP { typical_p: f32 },
    /// Zero, negative, infinite or not a number.
    #[error("repetition_penalty is {repetition_penalty}, must be a finite number above 0 (1 changes nothing)")]
    RepetitionPenalty { repetition_penalty: f32 },
    /// Infinite or not a number.
    #[error("{name} is {penalty}, must be a finite number (0 changes nothing)")]
    Penalty { name: &'static str, penalty: f32 },
    /// Plus infinity or not a number.
    #[error("logit_bias of token {id} is {bias}, must be a finite number, or minus infinity to exclude the token")]
    Bias { id: u32, bias: f32 },
    /// A bias for a token that there is not.
    #[error("logit_bias names token {id}, the vocabulary has {vocab_size} tokens")]
    BiasPastVocabulary { id: u32, vocab_size: usize },
    /// Not a number among the logits: the pass that made them went wrong.
    #[error("logit {id} of {vocab_size} is not a number")]
    NanLogit { id: usize, vocab_size: usize },
    /// There is no token to choose: no logits, or all are minus infinity.
    #[error("none of {vocab_size} logits is above minus infinity")]
    NoCandidate { vocab_size: usize },
}
