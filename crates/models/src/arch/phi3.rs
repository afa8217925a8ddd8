//! Phi-3 and Phi-4-mini dense decoders: as Llama, with one matrix for q, k and v, one for gate and up, and a rotation that may leave part
//! of a head alone. arXiv:2404.14219. The long-context variants stretch RoPE by the length of the text ("longrope") and are refused.

use super::{
    Recorded, Sizes,
    registry::Entry,
    sizes::{Defaults, usual_scale},
};
use crate::{
    checkpoint::{
        Fields, Folder, Keys,
        source::Rows,
        weights::{Bias, Weights},
    },
    error::ModelError,
    gguf::Gguf,
    layers::{
        attention::{AttentionSpec, AttentionWeights, QkNorms},
        decoder::{Decoder, Head},
        mlp::{LinearWeights, MlpWeights, gated_mlp},
        rope::{Rope, fields::RopeDefaults},
    },
};
use plimsoll_program::{Activation, RopeLayout};

pub(super) const ENTRY: Entry =
    Entry { gguf: &["phi3"], model_types: &["phi3"], classes: &["Phi3ForCausalLM"], from_gguf, from_folder };

/// Names of folders that differ from the usual ones. GGUF has no name of its own for gate and up in one: it keeps them as `ffn_up`.
const NAMES: &[(&str, &str)] = &[("attn_qkv", "self_attn.qkv_proj"), ("ffn_up", "mlp.gate_up_proj")];

/// Hyperparameters, named as in `config.json`.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "fields are named as in config.json")]
pub struct Config {
    pub sizes: Sizes,
    pub rope: Rope,
    /// Keys a row sees in every layer; absent: all.
    pub sliding_window: Option<usize>,
}

impl Config {
    /// Reads the `phi3.*` metadata of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError`] naming a key that is missing, of the wrong type, out of range, or not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        Self::from_keys(&Keys::new(gguf, "phi3"))
    }

    fn from_keys(keys: &Keys<'_>) -> Result<Self, ModelError> {
        let sizes = Sizes::from_keys(keys)?;
        sizes.require_intermediate(keys.name("feed_forward_length"))?;
        usual_scale(keys, sizes.head_dim)?;
        let rope = Rope::from_keys(keys, sizes.head_dim, sizes.max_position_embeddings, 10_000.0)?;
        let sliding_window = keys.find_size_or_zero("attention.sliding_window")?;
        keys.finish()?;
        Ok(Self { sizes, rope, sliding_window })
    }

    /// Reads the fields of a `config.json`.
    ///
    /// # Errors
    /// [`ModelError`] naming a field that is missing, of the wrong type, out of range, or not supported.
    pub fn from_folder(folder: &Folder) -> Result<Self, ModelError> {
        Self::from_fields(&Fields::new(folder.config()))
    }

    fn from_fields(fields: &Fields<'_>) -> Result<Self, ModelError> {
        fields.find_choice("hidden_act", &["silu", "swish"])?;
        // The class takes another value than those of its relatives where nothing is said.
        fields.require("rms_norm_eps")?;
        let sizes = Sizes::from_fields(fields, &Defaults::default())?;
        sizes.require_intermediate(fields.name("intermediate_size"))?;
        let rope = Rope::from_fields(fields, &RopeDefaults::usual(sizes.head_dim, sizes.max_position_embeddings))?;
        let sliding_window = fields.find_size("sliding_window")?;
        fields.finish()?;
        Ok(Self { sizes, rope, sliding_window })
    }
}

fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<Recorded, ModelError> {
    record(&Config::from_keys(keys)?, Weights::of_gguf(gguf))
}

fn from_folder(folder: &Folder, fields: &Fields<'_>) -> Result<Recorded, ModelError> {
    record(&Config::from_fields(fields)?, Weights::of_folder(folder, NAMES))
}

/// Records the program of one pass.
fn record(cfg: &Config, weights: Weights<'_>) -> Result<Recorded, ModelError> {
    let mut d = Decoder::new(weights, &cfg.sizes);
    let rope_table = d.rope_table("rope.inv_freq", &cfg.rope)?; // [rows, rotary_dim]
    let mut x = d.embed(); // [rows, hidden_size]
    let spec = AttentionSpec { window: cfg.sliding_window, ..AttentionSpec::usual(&cfg.sizes, RopeLayout::Halves) };
    for layer in 0..cfg.sizes.num_hidden_layers {
        d.b.set_layer(Some(layer));
        let (attention, mlp) = declare_layer(&mut d, &cfg.sizes, layer);
        let h = d.norm(layer, "attn_norm", x);
        let h = d.attention(layer, h, rope_table, &attention, &spec);
        x = d.b.add_assign(x, h);
        let h = d.norm(layer, "ffn_norm", x);
        let h = gated_mlp(&mut d.b, h, &mlp, Activation::Silu);
        x = d.b.add_assign(x, h);
    }
    d.finish(x, Head::default())
}

/// Declares the matrices of one layer: each is some rows of a tensor that holds several.
fn declare_layer(d: &mut Decoder<'_>, sizes: &Sizes, layer: usize) -> (AttentionWeights, MlpWeights) {
    let (hidden, ffn) = (sizes.hidden_size, sizes.intermediate_size);
    let (q_width, kv_width) = (sizes.q_width(), sizes.kv_width());
    let mut rows_of = |stored: &str, stored_rows: usize, part: &str, start: usize, len: usize| -> LinearWeights {
        let stored = d.weights.stored_name(&format!("blk.{layer}.{stored}.weight"));
        let stored = stored.strip_suffix(".weight").unwrap_or(&stored);
        let rows = Rows::Groups { group_rows: stored_rows, start, len };
        let stem = format!("blk.{layer}.{part}");
        d.weights.linear_rows(&mut d.b, &stem, [len, hidden], (stored, stored_rows, rows), Bias::No)
    };
    let qkv = q_width + 2 * kv_width;
    let q = rows_of("attn_qkv", qkv, "attn_q", 0, q_width);
    let k = rows_of("attn_qkv", qkv, "attn_k", q_width, kv_width);
    let v = rows_of("attn_qkv", qkv, "attn_v", q_width + kv_width, kv_width);
    let gate = rows_of("ffn_up", 2 * ffn, "ffn_gate", 0, ffn);
    let up = rows_of("ffn_up", 2 * ffn, "ffn_up", ffn, ffn);
    let o = d.weights.linear(&mut d.b, &format!("blk.{layer}.attn_output"), [hidden, q_width], Bias::No);
    let down = d.weights.linear(&mut d.b, &format!("blk.{layer}.ffn_down"), [hidden, ffn], Bias::No);
    let (norms, q_norm, k_norm) = (QkNorms::None, None, None);
    (AttentionWeights { q, k, v, o, norms, q_norm, k_norm, gate: None }, MlpWeights { gate, up, down })
}
