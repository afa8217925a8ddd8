//! What was said before, and what that does to the logits.

use std::collections::HashMap;

use super::SamplerParams;

/// Tokens of the prompt and of the answer, for the penalties.
///
/// The repetition penalty counts both, as `transformers` and vLLM do; presence and frequency count the answer alone, as the
/// OpenAI API and vLLM do.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    /// How often the answer holds each token; 0 for a token of the prompt only.
    answered: HashMap<u32, u32>,
}

impl History {
    pub(super) fn add_prompt(&mut self, tokens: &[u32]) {
        for &token in tokens {
            self.answered.entry(token).or_insert(0);
        }
    }

    pub(super) fn add_answer(&mut self, token: u32) {
        let times = self.answered.entry(token).or_insert(0);
        *times = times.saturating_add(1);
    }

    /// Each logit is changed on its own, so that the order in which tokens are visited does not matter.
    pub(super) fn penalize(&self, logits: &mut [f32], params: &SamplerParams) {
        for (&token, &times) in &self.answered {
            // A prompt may hold ids that the output head does not have.
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            if *logit < 0.0 {
                *logit *= params.repetition_penalty;
            } else {
                *logit /= params.repetition_penalty;
            }
            if times > 0 {
                // In f64 neither product nor sum overflows, so that an excluded token stays excluded and none becomes NaN.
                let penalty =
                    f64::from(params.presence_penalty) + f64::from(params.frequency_penalty) * f64::from(times);
                *logit = narrow(f64::from(*logit) - penalty);
            }
        }
    }
}

/// The nearest f32; past the range infinite.
fn narrow(value: f64) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the purpose")]
    let value = value as f32;
    value
}
