//! RoPE as `config.json` describes it, in both dialects: `rope_theta` with `rope_scaling`, and `rope_parameters`, flat or by kind of layer.
//!
//! Rules and defaults follow `modeling_rope_utils.py` of transformers 5.24.

use super::{BETAS, FACTORS, Rope, RopeScaling, THETAS};
use crate::{checkpoint::Fields, error::ModelError};

/// Kinds of scaling that are implemented. `dynamic` and `longrope` depend on how long the text is, which would let a token's bits depend on
/// what follows it.
const KINDS: &[&str] = &["default", "linear", "llama3", "yarn"];

/// Factors of cosines and sines, and multipliers of YaRN's logarithm.
const TEMPERATURES: std::ops::RangeInclusive<f64> = 0.0..=1e3;

/// What a kind of layer has to go by where `config.json` says nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RopeDefaults<'a> {
    pub(crate) head_dim: usize,
    pub(crate) context: usize,
    pub(crate) theta: f64,
    /// Share of a head that is rotated.
    pub(crate) partial: f64,
    /// The field with the base in the old dialect.
    pub(crate) theta_field: &'a str,
    /// The kind of layer (`full_attention`) in `rope_parameters` that has objects by kind.
    pub(crate) layer_type: Option<&'a str>,
    /// Whether the old dialect's `rope_scaling` applies.
    pub(crate) scaled: bool,
}

impl<'a> RopeDefaults<'a> {
    /// One rotation for all layers, of whole heads.
    pub(crate) fn usual(head_dim: usize, context: usize) -> Self {
        let (theta, partial) = (10_000.0, 1.0);
        Self { head_dim, context, theta, partial, theta_field: "rope_theta", layer_type: None, scaled: true }
    }
}

impl Rope {
    /// Reads the rotation of one kind of layer.
    ///
    /// # Errors
    /// [`ModelError`] naming a field of the wrong type, out of range, or not supported.
    pub(crate) fn from_fields(fields: &Fields<'_>, defaults: &RopeDefaults<'_>) -> Result<Self, ModelError> {
        let outer_theta = fields.find_number(defaults.theta_field, THETAS)?;
        let outer_partial = fields.find_number("partial_rotary_factor", 0.0..=1.0)?;
        let outer_context = fields.find_size("original_max_position_embeddings")?;
        let parameters = match fields.object("rope_parameters")? {
            Some(new) => {
                let by_kind = new.keys().any(|key| key.ends_with("_attention"));
                match defaults.layer_type {
                    Some(layer_type) if by_kind => {
                        let own = new.object(layer_type)?;
                        new.skip(&["full_attention", "sliding_attention"]);
                        new.finish()?;
                        own
                    }
                    None if !by_kind => Some(new),
                    _ if new.keys().next().is_none() => None,
                    Some(_) => return Err(fields.unsupported("rope_parameters", "an object for each kind of layer")),
                    None => return Err(fields.unsupported("rope_parameters", "one rotation for all layers")),
                }
            }
            None => None,
        };
        let parameters = match parameters {
            // With both dialects in one file, the old one must not say something else unseen.
            Some(new) => {
                if defaults.scaled && fields.value("rope_scaling").is_some() {
                    return Err(fields.unsupported("rope_scaling", "no such field beside rope_parameters"));
                }
                Some(new)
            }
            None if defaults.scaled => fields.object("rope_scaling")?,
            None => None,
        };
        let Some(parameters) = parameters else {
            let rotary_dim = rotary_dim(fields, defaults.head_dim, outer_partial.unwrap_or(defaults.partial))?;
            return Ok(Self { theta: outer_theta.unwrap_or(defaults.theta), scaling: RopeScaling::None, rotary_dim });
        };
        let theta = parameters.find_number("rope_theta", THETAS)?.or(outer_theta).unwrap_or(defaults.theta);
        let partial = parameters.find_number("partial_rotary_factor", 0.0..=1.0)?.or(outer_partial);
        let rotary_dim = rotary_dim(fields, defaults.head_dim, partial.unwrap_or(defaults.partial))?;
        let scaling = scaling(&parameters, defaults.context, outer_context)?;
        // Sections of images: where there is text alone, all positions of a token are the same, and so is every way to share them out.
        parameters.skip(&["mrope_section", "mrope_interleaved"]);
        parameters.finish()?;
        Ok(Self { theta, scaling, rotary_dim })
    }
}

fn rotary_dim(fields: &Fields<'_>, head_dim: usize, partial: f64) -> Result<usize, ModelError> {
    #[expect(clippy::cast_possible_truncation, reason = "a part of the head, rounded down as the reference does")]
    let rotary_dim = (head_dim as f64 * partial) as usize;
    if rotary_dim > 0 && rotary_dim.is_multiple_of(2) {
        return Ok(rotary_dim);
    }
    Err(ModelError::Unsupported {
        key: fields.name("partial_rotary_factor"),
        found: format!("{partial} of heads of {head_dim}"),
        supported: "an even number of rotated elements".to_owned(),
    })
}

fn scaling(fields: &Fields<'_>, context: usize, outer_context: Option<usize>) -> Result<RopeScaling, ModelError> {
    // `type` is the older word; both may be there.
    let old = fields.find_choice("type", KINDS)?;
    let kind = fields.find_choice("rope_type", KINDS)?.or(old).unwrap_or("default");
    if old.is_some_and(|old| old != kind) {
        return Err(fields.unsupported("type", &format!("{kind}, as rope_type")));
    }
    let factor = || {
        let found = fields.find_number("factor", FACTORS)?;
        found.ok_or_else(|| ModelError::MissingField { field: fields.name("factor") })
    };
    let required = |key: &str| {
        let found = fields.find_number(key, FACTORS)?;
        found.ok_or_else(|| ModelError::MissingField { field: fields.name(key) })
    };
    let original_context = || match outer_context {
        Some(context) => {
            fields.skip(&["original_max_position_embeddings"]);
            Ok(context)
        }
        None => fields.find_size("original_max_position_embeddings").map(|found| found.unwrap_or(context)),
    };
    match kind {
        "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
        "llama3" => {
            let (low_freq_factor, high_freq_factor) = (required("low_freq_factor")?, required("high_freq_factor")?);
            if low_freq_factor >= high_freq_factor {
                return Err(fields.unsupported("low_freq_factor", "a number below high_freq_factor"));
            }
            Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor,
                high_freq_factor,
                original_context: original_context()?,
            })
        }
        "yarn" => yarn(fields, context, original_context()?),
        _ => {
            // What a kind without scaling may carry, as long as it does nothing.
            fields.neutral(&[("factor", &[1.0])])?;
            fields.skip(&["original_max_position_embeddings"]);
            Ok(RopeScaling::None)
        }
    }
}

fn yarn(fields: &Fields<'_>, context: usize, original_context: usize) -> Result<RopeScaling, ModelError> {
    // Absent: the ratio of the two contexts.
    let factor = fields.find_number("factor", FACTORS)?.unwrap_or(context as f64 / original_context as f64);
    let stated = fields.find_number("attention_factor", TEMPERATURES)?;
    // 0 counts as not set in these four.
    let number = |key, range| Ok::<_, ModelError>(fields.find_number(key, range)?.filter(|&number| number != 0.0));
    let (mscale, mscale_all_dim) = (number("mscale", TEMPERATURES)?, number("mscale_all_dim", TEMPERATURES)?);
    let betas = 0.0..=*BETAS.end();
    let beta_fast = number("beta_fast", betas.clone())?.unwrap_or(32.0);
    let beta_slow = number("beta_slow", betas)?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        return Err(fields.unsupported("beta_fast", "a number not below beta_slow"));
    }
    let temperature = RopeScaling::yarn_temperature;
    let attention_factor = match (stated, mscale, mscale_all_dim) {
        (Some(stated), ..) => stated,
        (None, Some(own), Some(all)) => temperature(factor, own) / temperature(factor, all),
        _ => temperature(factor, 1.0),
    };
    let truncate = fields.find_flag("truncate")?.unwrap_or(true);
    Ok(RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, truncate })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rope(fields: Value) -> Result<Rope, ModelError> {
        Rope::from_fields(&Fields::new(fields.as_object().unwrap()), &RopeDefaults::usual(64, 4096))
    }

    #[test]
    fn both_dialects_say_the_same() {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024});
        let mut new = scaling.clone();
        new["rope_theta"] = json!(5e5);
        let old = rope(json!({"rope_theta": 5e5, "rope_scaling": scaling})).unwrap();
        assert_eq!(old, rope(json!({"rope_parameters": new})).unwrap());
        assert_eq!(old.theta, 5e5);
        let plain = Rope { theta: 1e4, scaling: RopeScaling::None, rotary_dim: 64 };
        for fields in [
            json!({}),
            json!({"rope_parameters": {}}),
            json!({"rope_scaling": null}),
            json!({"rope_scaling": {"type": "default"}}),
        ] {
            assert_eq!(rope(fields.clone()).unwrap(), plain, "{fields}");
        }
    }

    #[test]
    fn part_of_a_head_is_rotated_where_either_place_says_so() {
        for fields in
            [json!({"partial_rotary_factor": 0.25}), json!({"rope_parameters": {"partial_rotary_factor": 0.25}})]
        {
            assert_eq!(rope(fields).unwrap().rotary_dim, 16);
        }
        assert!(rope(json!({"partial_rotary_factor": 0.01})).is_err());
    }

    #[test]
    fn yarn_takes_its_factor_on_cos_and_sin_from_the_first_that_is_given() {
        let yarn = |more: Value| {
            let mut fields = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024});
            fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            match rope(json!({"rope_scaling": fields})).unwrap().scaling {
                RopeScaling::Yarn { attention_factor, truncate, beta_fast, factor, .. } => {
                    (attention_factor, truncate, beta_fast, factor)
                }
                other => panic!("{other:?}"),
            }
        };
        let m = |x: f64| 0.1 * x * 4f64.ln() + 1.0;
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        near(yarn(json!({})).0, m(1.0));
        near(yarn(json!({"mscale": 0.5})).0, m(1.0));
        near(yarn(json!({"mscale": 1.0, "mscale_all_dim": 0.5})).0, m(1.0) / m(0.5));
        near(yarn(json!({"mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 1.25})).0, 1.25);
        assert!(yarn(json!({})).1 && !yarn(json!({"truncate": false})).1);
        assert_eq!(yarn(json!({"beta_fast": 0})).2, 32.0);
        assert_eq!(yarn(json!({"factor": null})).3, 4.0);
    }

    #[test]
    fn what_depends_on_the_length_or_is_out_of_range_is_refused() {
        for (scaling, part) in [
            (json!({"rope_type": "dynamic", "factor": 2.0}), "dynamic"),
            (json!({"rope_type": "longrope", "short_factor": [1.0]}), "longrope"),
            (json!({"rope_type": "yarn", "factor": 1e-45}), "factor"),
            (json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 32}), "beta_fast"),
            (json!({"rope_type": "linear", "type": "yarn", "factor": 4.0}), "type"),
            (json!({"rope_type": "linear", "factor": "4"}), "factor"),
            (json!({"rope_type": "default", "factor": 4.0}), "factor"),
            (json!({"rope_type": "linear", "factor": 4.0, "short_mscale": 2.0}), "short_mscale"),
            (json!([1]), "rope_scaling"),
        ] {
            let error = rope(json!({"rope_scaling": scaling})).unwrap_err().to_string();
            assert!(error.contains(part), "{scaling}: {error}");
        }
        let both =
            json!({"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}});
        assert!(rope(both).unwrap_err().to_string().contains("beside rope_parameters"));
    }
}
