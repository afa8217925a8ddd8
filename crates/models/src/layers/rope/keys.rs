//! RoPE as the metadata of a GGUF file describes it. Keys follow llama.cpp.

use super::{BETAS, FACTORS, Rope, RopeScaling, THETAS};
use crate::{
    checkpoint::{CheckpointRef, Keys},
    error::ModelError,
    model::plain_values,
};

/// Multipliers of YaRN's logarithm.
const MULTIPLIERS: std::ops::RangeInclusive<f64> = 0.0..=1e3;

impl Rope {
    /// Reads `rope.*` for heads of `head_dim` and a trained context of `context` tokens. `default_theta`: where the file does not say.
    ///
    /// # Errors
    /// [`ModelError`] naming a key of the wrong type, out of range, or not supported.
    pub(crate) fn from_keys(
        keys: &Keys<'_>,
        head_dim: usize,
        context: usize,
        default_theta: f64,
    ) -> Result<Self, ModelError> {
        let rotary_dim = keys.find_size("rope.dimension_count")?.unwrap_or(head_dim);
        if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
            let supported = format!("an even number up to the head dimension, {head_dim}");
            return Err(keys.unsupported("rope.dimension_count", rotary_dim, supported));
        }
        let theta = keys.find_f32("rope.freq_base")?.map_or(default_theta, f64::from);
        if !THETAS.contains(&theta) {
            return Err(keys.unsupported("rope.freq_base", theta, "a finite number above 1"));
        }
        Ok(Self { theta, scaling: scaling(keys, rotary_dim, context)?, rotary_dim })
    }
}

fn scaling(keys: &Keys<'_>, rotary_dim: usize, context: usize) -> Result<RopeScaling, ModelError> {
    // Read in any case, so that a file may have them where they do nothing.
    keys.skip(&["rope.scaling.finetuned", "rope.scale_linear"]);
    keys.neutral(&[("rope.scaling.attn_factor", &[1.0]), ("rope.scaling.yarn_attn_factor", &[1.0])])?;
    let kind = keys.find_text("rope.scaling.type")?;
    let (factor_key, factor) = match keys.find_f32("rope.scaling.factor")? {
        Some(factor) => ("rope.scaling.factor", factor),
        None => ("rope.scale_linear", keys.find_f32("rope.scale_linear")?.unwrap_or(1.0)),
    };
    // 0 is llama.cpp's "not set".
    let factor = if factor == 0.0 { 1.0 } else { f64::from(factor) };
    if kind != Some("none") && !FACTORS.contains(&factor) {
        return Err(keys.unsupported(factor_key, factor, "a positive number from 1/1024 to 1048576"));
    }
    // Negative is llama.cpp's "not set": on for yarn, off for everything else.
    let ext_factor = keys.find_f32("rope.scaling.yarn_ext_factor")?.filter(|factor| factor.is_nan() || *factor >= 0.0);
    let usual_ext_factor = if kind == Some("yarn") { 1.0 } else { 0.0 };
    if let Some(found) = ext_factor.filter(|&found| found != usual_ext_factor) {
        return Err(keys.unsupported("rope.scaling.yarn_ext_factor", found, usual_ext_factor.to_string()));
    }
    let yarn = Yarn::read(keys, context)?;
    if let Some(tensor) = CheckpointRef::from(keys.gguf()).find_tensor("rope_freqs.weight") {
        if let Some(kind) = kind.filter(|&kind| kind != "none") {
            return Err(keys.unsupported("rope.scaling.type", kind, "\"none\" beside rope_freqs.weight"));
        }
        if kind.is_none() && factor != 1.0 {
            return Err(keys.unsupported(factor_key, factor, "1 beside rope_freqs.weight"));
        }
        let tensor = tensor.expect_shape(&[rotary_dim / 2])?;
        let factors: Vec<f32> = plain_values(tensor.plain_type()?, tensor.data).collect();
        if let Some(found) = factors.iter().find(|&&factor| !FACTORS.contains(&f64::from(factor))) {
            return Err(ModelError::Unsupported {
                key: "a value of rope_freqs.weight".to_owned(),
                found: found.to_string(),
                supported: "positive numbers from 1/1024 to 1048576".to_owned(),
            });
        }
        return Ok(RopeScaling::Factors(factors));
    }
    match kind {
        None if factor == 1.0 => Ok(RopeScaling::None),
        Some("none") => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear { factor }),
        Some("yarn") => Ok(yarn.scaling(factor)),
        Some(other) => {
            Err(keys.unsupported("rope.scaling.type", crate::checkpoint::one_line(other), "none, linear, yarn"))
        }
    }
}

/// YaRN's own keys.
struct Yarn {
    original_context: usize,
    beta_fast: f64,
    beta_slow: f64,
    log_multiplier: f64,
}

impl Yarn {
    fn read(keys: &Keys<'_>, context: usize) -> Result<Self, ModelError> {
        Ok(Self {
            original_context: keys.find_size("rope.scaling.original_context_length")?.unwrap_or(context),
            beta_fast: keys.find_number("rope.scaling.yarn_beta_fast", BETAS)?.unwrap_or(32.0),
            beta_slow: keys.find_number("rope.scaling.yarn_beta_slow", BETAS)?.unwrap_or(1.0),
            log_multiplier: keys.find_number("rope.scaling.yarn_log_multiplier", MULTIPLIERS)?.unwrap_or(0.0),
        })
    }

    /// As llama.cpp reads these keys: cos and sin are multiplied by `m(1) / m(log_multiplier)`, or by `m(1)` without such a key, with
    /// `m(x) = 0.1 x ln(factor) + 1`.
    fn scaling(self, factor: f64) -> RopeScaling {
        let temperature = RopeScaling::yarn_temperature;
        RopeScaling::Yarn {
            factor,
            original_context: self.original_context,
            beta_fast: self.beta_fast,
            beta_slow: self.beta_slow,
            // A multiplier of 0 is llama.cpp's "not set", and `m(0)` is 1.
            attention_factor: temperature(factor, 1.0) / temperature(factor, self.log_multiplier),
            truncate: true,
        }
    }
}
