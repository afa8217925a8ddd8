//! Rotary position embedding: inverse frequencies under the scalings that real models use. All of it is fixed at load.
//!
//! `pow` and `log` come from the `libm` crate: the system's differ between machines in the last bit.
//!
//! RoPE: Su et al. 2021, arXiv:2104.09864. YaRN: Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4.

pub(crate) mod fields;
mod keys;

use crate::error::ModelError;
use std::{f64::consts::PI, ops::RangeInclusive};

/// The rotation of one kind of layer: which part of a head it turns, and how fast.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How they are stretched.
    pub scaling: RopeScaling,
    /// Elements of each head that are rotated, from the first on; even.
    pub rotary_dim: usize,
}

impl Rope {
    /// Whether the divisors of the frequencies are a tensor of the file.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.scaling, RopeScaling::Factors(_))
    }

    /// The frequencies and the factor on cosines and sines.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] if one of them is no number, or so large that positions times it are none.
    pub(crate) fn frequencies(&self) -> Result<RopeFrequencies, ModelError> {
        let frequencies = self.scaling.frequencies(self.theta, self.rotary_dim);
        let mut all = frequencies.inv_freq.iter().copied().chain([frequencies.attention_factor]);
        let fault = all.find(|value| !(0.0..=MAX_FREQUENCY).contains(value));
        match fault {
            None => Ok(frequencies),
            Some(found) => Err(ModelError::Unsupported {
                key: "a frequency of RoPE".to_owned(),
                found: found.to_string(),
                supported: format!("numbers from 0 to {MAX_FREQUENCY}"),
            }),
        }
    }
}

/// Largest frequency, in turns per position times two pi: unscaled ones are at most 1.
const MAX_FREQUENCY: f32 = 1024.0;

/// Bases of frequencies that are taken for one: those of models go to 10^8.
pub(crate) const THETAS: RangeInclusive<f64> = 1.000_001..=1e15;

/// Stretches of the context, and of single frequencies, that are taken for one. What is far outside turns into infinities.
const FACTORS: RangeInclusive<f64> = 1.0 / 1024.0..=1_048_576.0;

/// Rotations at the ends of YaRN's ramp.
const BETAS: RangeInclusive<f64> = 1e-3..=1e6;

/// How a model stretches its rotary frequencies. Length-dependent ("dynamic") scaling has no variant: it would let a
/// token's bits depend on how long the text around it is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// All positions divided by `factor`.
    Linear {
        /// Stretch of the context.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a smooth ramp between.
    Llama3 {
        /// Stretch of the long wavelengths.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are stretched in full.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the first training, tokens.
        original_context: usize,
    },
    /// One divisor for each frequency, as GGUF stores Llama 3's in `rope_freqs.weight`.
    Factors(Vec<f32>),
    /// YaRN: interpolation by parts, and a temperature on the attention that enters through cos and sin.
    Yarn {
        /// Stretch of the context.
        factor: f64,
        /// Context length of the first training, tokens.
        original_context: usize,
        /// Rotations above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is stretched in full.
        beta_slow: f64,
        /// Multiplies cos and sin; `0.1 ln(factor) + 1` where the model does not say.
        attention_factor: f64,
        /// Whether the ends of the ramp are whole dimensions, as usual.
        truncate: bool,
    },
}

/// What a `RopeTable` step needs: inverse frequencies and the factor on cos and sin.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RopeFrequencies {
    /// `[rotary_dim / 2]`.
    pub(crate) inv_freq: Vec<f32>,
    /// Multiplies cos and sin.
    pub(crate) attention_factor: f32,
}

impl RopeScaling {
    /// YaRN's temperature for a stretch of `factor`: `0.1 multiplier ln(factor) + 1`; the paper has a multiplier of 1.
    pub(crate) fn yarn_temperature(factor: f64, multiplier: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * multiplier * libm::log(factor) + 1.0 }
    }

    /// Inverse frequencies for `rotary_dim` rotated dimensions; `rotary_dim` is even.
    #[expect(clippy::cast_possible_truncation, reason = "frequencies are computed in f64 and used in f32")]
    pub(crate) fn frequencies(&self, theta: f64, rotary_dim: usize) -> RopeFrequencies {
        let base: Vec<f64> =
            (0..rotary_dim / 2).map(|i| libm::pow(theta, -((2 * i) as f64) / rotary_dim as f64)).collect();
        let (scaled, attention_factor): (Vec<f64>, f64) = match self {
            Self::None => (base, 1.0),
            Self::Linear { factor } => (base.iter().map(|f| f / factor).collect(), 1.0),
            Self::Factors(factors) => (base.iter().zip(factors).map(|(f, d)| f / f64::from(*d)).collect(), 1.0),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let context = *original_context as f64;
                let scale = |f: f64| {
                    let wavelength = 2.0 * PI / f;
                    if wavelength < context / high_freq_factor {
                        f
                    } else if wavelength > context / low_freq_factor {
                        f / factor
                    } else {
                        let smooth = (context / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                };
                (base.into_iter().map(scale).collect(), 1.0)
            }
            Self::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, truncate } => {
                let dim = rotary_dim as f64;
                // Dimension at which a frequency makes `rotations` turns over the original context.
                let turn_dim = |rotations: f64| {
                    dim * libm::log(*original_context as f64 / (rotations * 2.0 * PI)) / (2.0 * libm::log(theta))
                };
                let (low, high) = (turn_dim(*beta_fast), turn_dim(*beta_slow));
                let (low, high) = if *truncate { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(dim - 1.0));
                // Equal ends would divide by zero.
                let high = if high <= low { low + 0.001 } else { high };
                let blend = |(i, f): (usize, f64)| {
                    let stretched = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * stretched + f * (1.0 - stretched)
                };
                (base.into_iter().enumerate().map(blend).collect(), *attention_factor)
            }
        };
        RopeFrequencies {
            inv_freq: scaled.into_iter().map(|f| f as f32).collect(),
            attention_factor: attention_factor as f32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn freqs(scaling: &RopeScaling) -> Vec<f32> {
        scaling.frequencies(10_000.0, 8).inv_freq
    }

    #[test]
    fn unscaled_frequencies_fall_by_powers_of_theta() {
        assert_eq!(freqs(&RopeScaling::None), [1.0, 0.1, 0.01, 0.001]);
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        assert_eq!(freqs(&RopeScaling::Linear { factor: 4.0 }), [0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn llama3_keeps_short_wavelengths_and_stretches_long_ones() {
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 1024 };
        let got = freqs(&scaling);
        assert_eq!(got[0], 1.0); // wavelength 6.3, below 256
        assert_eq!(got[3], 0.001 / 8.0); // wavelength 6283, above 1024
        assert!(got[2] < 0.01 && got[2] > 0.01 / 8.0, "wavelength 628 sits on the ramp: {}", got[2]);
    }

    #[test]
    fn yarn_keeps_fast_dimensions_and_stretches_slow_ones() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_context: 256,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: RopeScaling::yarn_temperature(4.0, 1.0),
            truncate: true,
        };
        let got = scaling.frequencies(10_000.0, 8);
        assert_eq!(got.inv_freq[0], 1.0);
        assert_eq!(got.inv_freq[3], 0.001 / 4.0);
        assert!((f64::from(got.attention_factor) - 1.138_629_4).abs() < 1e-6);
    }
}
