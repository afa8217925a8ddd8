//! Models for tests: golden ones, the default one, and random ones of any size.

use crate::random::Random;
use anyhow::{Context, Result};
use plimsoll_models::{
    Checkpoint, Model,
    gguf::{GgmlType, Gguf, GgufWriter},
};
use std::{env, path::Path, sync::Arc};

/// Environment variable that names the default model's file.
pub const MODEL_VARIABLE: &str = "PLIMSOLL_TEST_MODEL";

/// Loads a GGUF file or a model folder.
///
/// # Errors
/// If it is missing or faulty.
pub fn load(path: &Path) -> Result<Arc<Model>> {
    let checkpoint = Checkpoint::open(path).with_context(|| path.display().to_string())?;
    Ok(Arc::new(Model::load(&checkpoint, 2).with_context(|| path.display().to_string())?))
}

/// Loads the default model.
///
/// # Errors
/// If [`MODEL_VARIABLE`] is not set: a slow test that was asked for does not pass without its model.
pub fn default_model() -> Result<Arc<Model>> {
    let path = env::var_os(MODEL_VARIABLE)
        .with_context(|| format!("{MODEL_VARIABLE} is not set: it names the default model's file"))?;
    load(Path::new(&path))
}

/// Sizes of a llama with random f32 weights.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "named as in config.json")]
pub struct RandomLlama {
    pub layers: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub vocab_size: usize,
    pub sliding_window: Option<usize>,
}

impl RandomLlama {
    /// Small sizes, and `layers` layers.
    #[must_use]
    pub fn small(layers: usize) -> Self {
        Self {
            layers,
            hidden_size: 48,
            intermediate_size: 80,
            heads: 4,
            kv_heads: 2,
            vocab_size: 101,
            sliding_window: None,
        }
    }

    /// Writes it as GGUF to memory and loads it.
    ///
    /// # Errors
    /// If the sizes do not go together.
    pub fn model(&self, seed: u64) -> Result<Arc<Model>> {
        self.model_with(seed, |_, _| ())
    }

    /// The same after `edit` has had the name and the bytes of each tensor, f32 in little-endian order.
    ///
    /// # Errors
    /// If the sizes do not go together.
    pub fn model_with(&self, seed: u64, mut edit: impl FnMut(&str, &mut [u8])) -> Result<Arc<Model>> {
        let (hidden, ffn) = (self.hidden_size, self.intermediate_size);
        let kv_width = self.kv_heads * (hidden / self.heads);
        let mut random = Random::new(seed);
        let mut file = GgufWriter::new();
        file.put("general.architecture", "llama")?;
        for (key, value) in [
            ("llama.context_length", 1024),
            ("llama.embedding_length", hidden),
            ("llama.block_count", self.layers),
            ("llama.feed_forward_length", ffn),
            ("llama.attention.head_count", self.heads),
            ("llama.attention.head_count_kv", self.kv_heads),
        ] {
            file.put(key, u32::try_from(value)?)?;
        }
        file.put("llama.attention.layer_norm_rms_epsilon", 1e-5_f32)?;
        if let Some(window) = self.sliding_window {
            file.put("llama.attention.sliding_window", u32::try_from(window)?)?;
        }
        let mut add = |name: &str, shape: &[usize], bound: f32| {
            let mut bytes = random.f32_bytes(shape.iter().product(), bound);
            edit(name, &mut bytes);
            file.tensor(name, shape, GgmlType::F32, bytes).map(|_| ())
        };
        add("token_embd.weight", &[self.vocab_size, hidden], 1.0)?;
        add("output_norm.weight", &[hidden], 1.0)?;
        for layer in 0..self.layers {
            for (name, shape) in [
                ("attn_norm", &[hidden][..]),
                ("ffn_norm", &[hidden]),
                ("attn_q", &[hidden, hidden]),
                ("attn_k", &[kv_width, hidden]),
                ("attn_v", &[kv_width, hidden]),
                ("attn_output", &[hidden, hidden]),
                ("ffn_gate", &[ffn, hidden]),
                ("ffn_up", &[ffn, hidden]),
                ("ffn_down", &[hidden, ffn]),
            ] {
                add(&format!("blk.{layer}.{name}.weight"), shape, 0.2)?;
            }
        }
        let gguf = Gguf::from_bytes(file.to_bytes())?;
        Ok(Arc::new(Model::from_gguf(&gguf, 1)?))
    }
}
