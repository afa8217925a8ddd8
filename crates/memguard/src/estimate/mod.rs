//! What a model will cost, before a byte of it is loaded.

mod architectures;
mod closed_form;
mod config;
mod error;
mod metadata;
mod shape;

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

pub use closed_form::{AttentionPrice, ClosedForm, EstimateSettings, StorageFormat, WeightFormats};
pub use config::Config;
pub use error::EstimateError;
pub use metadata::Metadata;
use metadata::Translation;
pub use shape::{
    AttentionShape, CompressedShape, ExpertsShape, FeedForward, IndexerShape, LatentShape, LayerShape, Mixer,
    ModelShape, Parameters, PoolShape, RecurrentShape,
};

use crate::{Pass, Profile};

type Rule = Box<dyn Fn(&Config<'_>, &EstimateSettings) -> Result<Estimate, EstimateError> + Send + Sync>;

/// How to price each architecture, by name (`model_type` of `config.json`).
///
/// The built-in rules are closed forms; who has a program for an architecture registers a better rule over them.
pub struct Registry {
    rules: BTreeMap<String, Rule>,
}

impl Registry {
    /// A registry that knows no architecture.
    #[must_use]
    pub fn empty() -> Self {
        Self { rules: BTreeMap::new() }
    }

    /// A registry with all built-in closed forms.
    #[must_use]
    pub fn builtin() -> Self {
        let mut registry = Self::empty();
        architectures::register_all(&mut registry);
        registry
    }

    /// Prices architectures called `name` by `rule` from now on, in place of an earlier rule.
    ///
    /// Any name works by which a config may call itself: `model_type`, or an entry of `architectures`.
    ///
    /// ```
    /// use plimsoll_memguard::{
    ///     AttentionShape, ClosedForm, Config, Estimate, EstimateSettings, FeedForward, LayerShape, Mixer, ModelShape, Parameters,
    ///     Profile, Registry,
    /// };
    ///
    /// let mut registry = Registry::builtin();
    /// // A decoder of one's own: every layer attends to everything, and has a feed-forward network four times as wide.
    /// registry.register("my_model", |config: &Config<'_>, settings: &EstimateSettings| {
    ///     let hidden_size = config.required("hidden_size")?;
    ///     let heads = config.required("num_attention_heads")?;
    ///     let layer = LayerShape {
    ///         mixer: Mixer::Attention(AttentionShape::new(heads, config.size_or("num_key_value_heads", heads)?, config.head_dim()?)),
    ///         feed_forward: FeedForward::dense(4 * hidden_size),
    ///         norms: 2,
    ///         extra: Parameters::default(),
    ///     };
    ///     let shape = ModelShape {
    ///         hidden_size,
    ///         vocab_size: config.required("vocab_size")?,
    ///         tie_word_embeddings: true,
    ///         residual_streams: 1,
    ///         layers: vec![layer; config.layers()?],
    ///         extra: Parameters::default(),
    ///     };
    ///     Ok(Estimate::closed_form(ClosedForm::new(shape, *settings)))
    /// });
    /// let config = serde_json::json!({
    ///     "model_type": "my_model", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 6, "vocab_size": 32_000,
    /// });
    /// let mine = registry.from_config(&config, &EstimateSettings::default())?;
    /// assert_eq!(mine.kv_bytes(64), 6 * 2 * 512 * 2 * 64);
    /// # Ok::<(), plimsoll_memguard::EstimateError>(())
    /// ```
    pub fn register<F>(&mut self, name: impl Into<String>, rule: F)
    where
        F: Fn(&Config<'_>, &EstimateSettings) -> Result<Estimate, EstimateError> + Send + Sync + 'static,
    {
        self.rules.insert(name.into(), Box::new(rule));
    }

    /// All names with a rule, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rules.keys().map(String::as_str)
    }

    /// Prices the model of a parsed `config.json`.
    ///
    /// # Errors
    /// [`EstimateError::NoArchitecture`] or [`EstimateError::UnknownArchitecture`]; else what the rule returns.
    pub fn from_config(&self, config: &Value, settings: &EstimateSettings) -> Result<Estimate, EstimateError> {
        let config = Config::new(config);
        let rule = config.names().find_map(|name| self.rules.get(name));
        match (rule, config.names().next()) {
            (Some(rule), _) => rule(&config, settings),
            (None, Some(name)) => Err(EstimateError::UnknownArchitecture { name: name.to_owned() }),
            (None, None) => Err(EstimateError::NoArchitecture),
        }
    }

    /// Prices the model of a GGUF file. Its fields are put under the names of `config.json`, so one rule serves both; its
    /// weights are taken as stored unless `settings` give their bytes.
    ///
    /// # Errors
    /// As [`Registry::from_config`], with the file's own keys for fields.
    pub fn from_metadata(
        &self,
        metadata: &dyn Metadata,
        settings: &EstimateSettings,
    ) -> Result<Estimate, EstimateError> {
        let translated = Translation::of(metadata)?;
        let weights_bytes = settings.weights_bytes.unwrap_or_else(|| metadata.tensor_bytes());
        let settings = EstimateSettings { weights_bytes: Some(weights_bytes), ..*settings };
        self.from_config(&translated.config, &settings).map_err(|error| translated.in_keys(error))
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::builtin()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registry").field(&self.names().collect::<Vec<_>>()).finish()
    }
}

/// Where the transient figure of an [`Estimate`] comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransientSource {
    /// A formula over the dimensions: near the truth, not exact.
    ClosedForm,
    /// The plan of the program that will run: exact.
    Plan,
}

impl fmt::Display for TransientSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClosedForm => "closed form (estimate)",
            Self::Plan => "plan of the program",
        })
    }
}

/// A priced model.
pub struct Estimate {
    profile: Box<dyn Profile + Send + Sync>,
    transient_source: TransientSource,
}

impl Estimate {
    /// A closed form.
    #[must_use]
    pub fn closed_form(form: ClosedForm) -> Self {
        Self { profile: Box::new(form), transient_source: TransientSource::ClosedForm }
    }

    /// A profile of the caller, who says where its transient figure comes from.
    #[must_use]
    pub fn new(profile: impl Profile + Send + Sync + 'static, transient_source: TransientSource) -> Self {
        Self { profile: Box::new(profile), transient_source }
    }

    /// How far to trust [`Profile::transient_bytes`] of this estimate.
    #[must_use]
    pub fn transient_source(&self) -> TransientSource {
        self.transient_source
    }
}

impl Profile for Estimate {
    fn weights_bytes(&self) -> u64 {
        self.profile.weights_bytes()
    }

    fn kv_bytes(&self, context_tokens: usize) -> u64 {
        self.profile.kv_bytes(context_tokens)
    }

    fn transient_bytes(&self, pass: &Pass) -> u64 {
        self.profile.transient_bytes(pass)
    }
}

impl fmt::Debug for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Estimate")
            .field("weights_bytes", &self.weights_bytes())
            .field("transient_source", &self.transient_source)
            .finish_non_exhaustive()
    }
}

/// Bytes one sequence of `context_tokens` needs at its peak: weights, KV, and the last chunk of at most `chunk_rows`.
#[must_use]
pub fn peak_bytes(profile: &dyn Profile, context_tokens: usize, chunk_rows: usize) -> u64 {
    let rows = context_tokens.min(chunk_rows);
    let pass = Pass { rows, start: context_tokens - rows, logit_rows: rows.min(1) };
    let held = profile.weights_bytes().saturating_add(profile.kv_bytes(context_tokens));
    held.saturating_add(profile.transient_bytes(&pass))
}

/// The longest context, up to `limit_tokens`, whose [`peak_bytes`] are within `budget_bytes`; `None` if not even one token
/// fits. Relies on profiles being monotone.
#[must_use]
pub fn longest_context(
    profile: &dyn Profile,
    budget_bytes: u64,
    chunk_rows: usize,
    limit_tokens: usize,
) -> Option<usize> {
    let fits = |tokens: usize| peak_bytes(profile, tokens, chunk_rows) <= budget_bytes;
    if limit_tokens == 0 || !fits(1) {
        return None;
    }
    let (mut fitting, mut past) = (1, limit_tokens.saturating_add(1));
    while past - fitting > 1 {
        let middle = fitting + (past - fitting) / 2;
        if fits(middle) {
            fitting = middle;
        } else {
            past = middle;
        }
    }
    Some(fitting)
}

#[cfg(test)]
mod tests;
