//! How tokens are chosen, and where the answer ends.

use super::number;
use clap::Args;
use plimsoll_models::sampler::SamplerParams;
use std::{collections::BTreeMap, str::FromStr};

#[derive(Debug, Args)]
pub(crate) struct SamplingArgs {
    /// Sampling temperature; 0 takes the most likely token.
    #[arg(short, long, env = "PLIMSOLL_TEMPERATURE", default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Sample among the N most likely tokens only.
    #[arg(long, env = "PLIMSOLL_TOP_K", value_name = "N", value_parser = number::count::<usize>)]
    pub(crate) top_k: Option<usize>,
    /// Sample among the most likely tokens that together reach this probability.
    #[arg(long, env = "PLIMSOLL_TOP_P", value_name = "P", default_value_t = 1.0)]
    pub(crate) top_p: f32,
    /// Sample among tokens at least this fraction as likely as the most likely one.
    #[arg(long, env = "PLIMSOLL_MIN_P", value_name = "P", default_value_t = 0.0)]
    pub(crate) min_p: f32,
    /// Sample among the tokens whose surprise is nearest to the expected one, that together reach this probability.
    #[arg(long, env = "PLIMSOLL_TYPICAL_P", value_name = "P", default_value_t = 1.0)]
    pub(crate) typical_p: f32,
    /// Makes tokens of prompt and answer less likely: positive logits are divided by it, negative ones multiplied; 1 changes nothing.
    #[arg(long, env = "PLIMSOLL_REPETITION_PENALTY", value_name = "X", default_value_t = 1.0)]
    pub(crate) repetition_penalty: f32,
    /// Subtracted from the logit of every token that the answer holds.
    #[arg(long, env = "PLIMSOLL_PRESENCE_PENALTY", value_name = "X", default_value_t = 0.0)]
    pub(crate) presence_penalty: f32,
    /// Subtracted from a token's logit as often as the answer holds it.
    #[arg(long, env = "PLIMSOLL_FREQUENCY_PENALTY", value_name = "X", default_value_t = 0.0)]
    pub(crate) frequency_penalty: f32,
    /// Added to the logits of these tokens, like 13=-5,42=-inf.
    #[arg(long, env = "PLIMSOLL_LOGIT_BIAS", value_name = "ID=BIAS[,..]")]
    pub(crate) logit_bias: Option<LogitBias>,
    /// Seed of the sampler: the same seed gives the same text.
    #[arg(short, long, env = "PLIMSOLL_SEED", value_name = "N", default_value_t = 0, value_parser = number::count::<u64>)]
    pub(crate) seed: u64,
    /// End the answer before this text; may be given more than once, in the environment once.
    #[arg(long, env = "PLIMSOLL_STOP", value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
}

impl SamplingArgs {
    /// The same for the sampler, which checks the ranges.
    pub(crate) fn params(&self) -> SamplerParams {
        SamplerParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.as_ref().map(|bias| bias.0.clone()).unwrap_or_default(),
            seed: self.seed,
        }
    }
}

/// `--logit-bias`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LogitBias(BTreeMap<u32, f32>);

impl FromStr for LogitBias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut biases = BTreeMap::new();
        for entry in text.split(',') {
            let pair =
                entry.split_once('=').and_then(|(id, bias)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?)));
            let (id, bias) = pair.ok_or_else(|| format!("\"{entry}\" is not a token id, = and a number"))?;
            if biases.insert(id, bias).is_some() {
                return Err(format!("token {id} is named twice"));
            }
        }
        Ok(Self(biases))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_read_as_pairs() {
        let biases = |text: &str| text.parse::<LogitBias>().map(|biases| biases.0.into_iter().collect::<Vec<_>>());
        assert_eq!(biases("7=-1.5"), Ok(vec![(7, -1.5)]));
        assert_eq!(biases("9=2, 3=-inf"), Ok(vec![(3, f32::NEG_INFINITY), (9, 2.0)]));
        for text in ["", "7", "7=", "=1", "-1=2", "7=x", "7=1,", "4294967296=1"] {
            assert!(biases(text).unwrap_err().contains("is not a token id"), "{text}");
        }
        assert_eq!(biases("7=1,7=2"), Err("token 7 is named twice".to_owned()));
    }
}
