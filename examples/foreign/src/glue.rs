//! What the host needs of plimsoll: its attention, a ledger for its bytes, and the driver that feeds it a prompt.

use candle_core::{DType, Device, Error, Result, Tensor};
use candle_transformers::models::llama::Config;
use plimsoll_attention::{AttnShape, CausalAttention, Isa, KvDtype, KvValues, TensorRoute};
use plimsoll_memguard::{Budget, Kind, Ledger};
use plimsoll_prefill::{CancelToken, Chunk, ChunkTarget, Driver, DriverOptions, PrefillReport};

use crate::{KvCache, Llama};

/// The attention of a Llama with these settings.
pub fn causal_attention(config: &Config, threads: usize) -> CausalAttention {
    let head_dim = config.hidden_size / config.num_attention_heads;
    CausalAttention::new(1.0 / (head_dim as f32).sqrt(), Isa::detect(), threads)
}

/// A prompt on its way through the model.
#[derive(Debug)]
pub struct Prefill<'a> {
    /// The model.
    pub model: &'a Llama,
    /// The prompt.
    pub tokens: &'a [u32],
    /// Keys and values of what has run.
    pub cache: KvCache,
    /// Logits of the prompt's last token, once it has run.
    pub logits: Option<Tensor>,
}

impl ChunkTarget for Prefill<'_> {
    type Error = Error;

    fn transient_bytes(&self, rows: usize, start: usize) -> u64 {
        let Config { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = self.model.config;
        let (hidden, ffn) = (self.model.config.hidden_size, self.model.config.intermediate_size);
        let (kv_len, head_dim) = (start + rows, hidden / heads);
        let (v_head_dim, kv_dtype, kv_values, window) = (head_dim, KvDtype::F32, KvValues::Own, None);
        let shape = AttnShape { rows, kv_len, heads, kv_heads, head_dim, v_head_dim, kv_dtype, kv_values, window };
        let attention = self.model.attention.workspace_bytes(TensorRoute::Tiled, 1, &shape, DType::F32);
        // The residual, its norm, and the widest of what hangs on them: gate, its activation, up and product, or q, k, v and output.
        let wide = (4 * ffn).max(4 * hidden + 4 * kv_heads * head_dim);
        ((3 * hidden + wide) * rows * 4 + (hidden + self.model.config.vocab_size) * 4) as u64 + attention
    }

    fn run(&mut self, chunk: &Chunk) -> Result<()> {
        let logits = self.model.forward(&self.tokens[chunk.start..chunk.end()], chunk.start, &self.cache)?;
        self.logits = chunk.last.then_some(logits);
        Ok(())
    }

    fn drain(&mut self) {}
}

/// Logits of the prompt's last token, out of `budget_bytes` for keys, values and everything temporary.
///
/// # Errors
/// If the budget is too small, with what is needed, or candle fails.
pub fn prefill(
    model: &Llama,
    tokens: &[u32],
    budget_bytes: u64,
    device: &Device,
) -> std::result::Result<(Tensor, PrefillReport), Box<dyn std::error::Error>> {
    let Config { hidden_size, num_attention_heads, num_key_value_heads, num_hidden_layers, .. } = model.config;
    let token_bytes = 8 * num_hidden_layers * num_key_value_heads * (hidden_size / num_attention_heads);
    let ledger = Ledger::new(Budget::Bytes(budget_bytes));
    let _kv = ledger.reserve(Kind::Kv, (tokens.len() * token_bytes) as u64)?;
    let cache = KvCache::new(&model.config, tokens.len(), device)?;
    let mut target = Prefill { model, tokens, cache, logits: None };
    let driver = Driver::new(DriverOptions::new(ledger.clone()));
    let report = driver.run(&mut target, 0..tokens.len(), &CancelToken::new(), |_| ())?;
    Ok((target.logits.ok_or("an empty prompt has no logits")?, report))
}
