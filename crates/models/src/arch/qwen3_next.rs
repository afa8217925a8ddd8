//! Qwen3-Next decoder: gated delta nets with gated attention in every fourth layer, and experts with a shared one.
//!
//! Qwen3-Next-80B-A3B as `transformers` 5.24 and llama.cpp compute it; the delta rule is arXiv:2412.06464. Norms are stored as their distance
//! from one in folders, but for the gated norm. What Qwen3.5 shares with it is here.

use super::{
    LayerState, Recorded, Sizes,
    registry::Entry,
    sizes::{Defaults, MAX_HEAD_DIM, at_most, divides, usual_scale},
};
use crate::{
    checkpoint::{
        Fields, Folder, Keys,
        source::{Map, Part, Rows, Source},
        weights::{Bias, Dialect, Weights},
    },
    error::ModelError,
    gguf::Gguf,
    layers::{
        attention::{AttentionParts, AttentionSpec, AttentionWeights, QkNorms},
        decoder::{Decoder, Head},
        delta_net::{DeltaNetInputs, DeltaNetShape, DeltaNetWeights, delta_net},
        moe::config::{MoeConfig, SparseLayers},
        rope::{Rope, fields::RopeDefaults},
    },
};
use plimsoll_program::{HeadOrder, RopeLayout, Slot};

pub(super) const ENTRY: Entry = Entry {
    gguf: &["qwen3next"],
    model_types: &["qwen3_next"],
    classes: &["Qwen3NextForCausalLM"],
    from_gguf,
    from_folder,
};

/// Words of `transformers` for the parts of a layer.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_in", "linear_attn.in_proj_qkvz"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

/// Width of an attention head where `config.json` does not say, as the class in `transformers` has it.
const HEAD_DIM: usize = 256;

/// Most heads and widest head of a delta net, and most taps of its convolution: far beyond any model's, and small enough that no product of
/// them overflows.
const MAX_HEADS: usize = 1 << 16;
const MAX_TAPS: usize = 1 << 10;

/// Hyperparameters of a decoder with gated delta nets.
pub(super) struct Config {
    pub(super) sizes: Sizes,
    pub(super) rope: Rope,
    pub(super) delta: DeltaNetShape,
    /// Layers that attend; the others recur.
    pub(super) attends: Vec<bool>,
    pub(super) moe: Option<MoeConfig>,
    pub(super) sparse: SparseLayers,
    pub(super) attention_bias: Bias,
    /// How the input projections of a delta net are stored.
    pub(super) projections: Projections,
}

/// Input projections of a delta net as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Projections {
    /// Queries, keys, values and gates of each key head side by side, and the same for the two factors.
    ByKeyHead,
    /// Factors side by side for each key head, the rest apart: llama.cpp's files of Qwen3-Next.
    FactorsByKeyHead,
    /// Each apart.
    Apart,
}

impl Config {
    /// What all files of this family say in the same way.
    pub(super) fn from_keys(keys: &Keys<'_>, moe: bool, projections: Projections) -> Result<Self, ModelError> {
        let mut sizes = Sizes::from_keys(keys)?;
        // Layers that guess further tokens come after the decoder's own.
        let guessing = keys.find_size_or_zero("nextn_predict_layers")?.unwrap_or(0);
        sizes.num_hidden_layers = sizes
            .num_hidden_layers
            .checked_sub(guessing)
            .filter(|&layers| layers > 0)
            .ok_or_else(|| keys.unsupported("nextn_predict_layers", guessing, "fewer than block_count"))?;
        usual_scale(keys, sizes.head_dim)?;
        // Sections of the rotation are of images: with text alone, all positions of a token are the same.
        keys.skip(&["rope.dimension_sections"]);
        let rope = Rope::from_keys(keys, sizes.head_dim, sizes.max_position_embeddings, 10_000.0)?;
        let bounded = |key: &str, most: usize| at_most(&keys.name(key), keys.size(key)?, most);
        let key_heads = bounded("ssm.group_count", MAX_HEADS)?;
        let value_heads = bounded("ssm.time_step_rank", MAX_HEADS)?;
        let value_width = keys.size("ssm.inner_size")?;
        let order = if projections == Projections::Apart { HeadOrder::Tiled } else { HeadOrder::Grouped };
        divides(&keys.name("ssm.time_step_rank"), value_heads, &keys.name("ssm.group_count"), key_heads)?;
        divides(&keys.name("ssm.inner_size"), value_width, &keys.name("ssm.time_step_rank"), value_heads)?;
        let delta = DeltaNetShape {
            key_heads,
            key_head_dim: bounded("ssm.state_size", MAX_HEAD_DIM)?,
            value_heads,
            value_head_dim: at_most(&keys.name("ssm.inner_size"), value_width / value_heads, MAX_HEAD_DIM)?,
            kernel: bounded("ssm.conv_kernel", MAX_TAPS)?,
            order,
        };
        let interval = keys.find_size("full_attention_interval")?.unwrap_or(4);
        let attends = (1..=sizes.num_hidden_layers).map(|layer| layer.is_multiple_of(interval)).collect();
        let moe = if moe { Some(MoeConfig::from_keys(keys, true)?) } else { None };
        keys.finish()?;
        let (sparse, attention_bias) = (SparseLayers::Found, Bias::IfPresent);
        Ok(Self { sizes, rope, delta, attends, moe, sparse, attention_bias, projections })
    }

    /// What all folders of this family say in the same way, but for experts; the caller finishes the fields. `kv_heads`: where the file
    /// does not say, as the class in `transformers` has it.
    pub(super) fn from_fields(
        fields: &Fields<'_>,
        kv_heads: usize,
        projections: Projections,
    ) -> Result<Self, ModelError> {
        fields.find_choice("hidden_act", &["silu", "swish"])?;
        fields.neutral(&[("attn_output_gate", &[1.0]), ("use_sliding_window", &[0.0])])?;
        fields.find_choice("mamba_ssm_dtype", &["float32"])?;
        fields.find_choice("output_gate_type", &["silu", "swish"])?;
        let sizes = Sizes::from_fields(
            fields,
            &Defaults { head_dim: Some(HEAD_DIM), num_key_value_heads: Some(kv_heads), ..Defaults::default() },
        )?;
        let defaults =
            RopeDefaults { partial: 0.25, ..RopeDefaults::usual(sizes.head_dim, sizes.max_position_embeddings) };
        let rope = Rope::from_fields(fields, &defaults)?;
        let size = |key: &str, default: usize, most: usize| {
            at_most(&fields.name(key), fields.find_size(key)?.unwrap_or(default), most)
        };
        let key_heads = size("linear_num_key_heads", 16, MAX_HEADS)?;
        let value_heads = size("linear_num_value_heads", 32, MAX_HEADS)?;
        divides(&fields.name("linear_num_value_heads"), value_heads, &fields.name("linear_num_key_heads"), key_heads)?;
        let delta = DeltaNetShape {
            key_heads,
            key_head_dim: size("linear_key_head_dim", 128, MAX_HEAD_DIM)?,
            value_heads,
            value_head_dim: size("linear_value_head_dim", 128, MAX_HEAD_DIM)?,
            kernel: size("linear_conv_kernel_dim", 4, MAX_TAPS)?,
            order: HeadOrder::Grouped,
        };
        let attends = attends(fields, sizes.num_hidden_layers)?;
        let attention_bias = Bias::stated(fields.find_flag("attention_bias")?.unwrap_or(false));
        let sparse = SparseLayers::Stated { step: 1, dense: Vec::new() };
        Ok(Self { sizes, rope, delta, attends, moe: None, sparse, attention_bias, projections })
    }
}

/// Which layers attend: `layer_types`, or every `full_attention_interval`th.
fn attends(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let interval = fields.find_size("full_attention_interval")?.unwrap_or(4);
    let Some(types) = fields.find_texts("layer_types")? else {
        return Ok((1..=layers).map(|layer| layer.is_multiple_of(interval)).collect());
    };
    let one = |kind: &&str| match *kind {
        "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        _ => Err(fields.unsupported("layer_types", "full_attention and linear_attention")),
    };
    if types.len() != layers {
        return Err(fields.unsupported("layer_types", &format!("one entry for each of the {layers} layers")));
    }
    types.iter().map(one).collect()
}

fn from_gguf(gguf: &Gguf, keys: &Keys<'_>) -> Result<Recorded, ModelError> {
    let cfg = Config::from_keys(keys, true, Projections::FactorsByKeyHead)?;
    record(&cfg, Weights::of_gguf(gguf))
}

fn from_folder(folder: &Folder, fields: &Fields<'_>) -> Result<Recorded, ModelError> {
    let mut cfg = Config::from_fields(fields, 2, Projections::ByKeyHead)?;
    cfg.moe = MoeConfig::from_fields(fields, true, true)?;
    cfg.sparse = SparseLayers::from_fields(fields)?;
    fields.finish()?;
    record(&cfg, Weights::of_folder(folder, NAMES))
}

/// Records the program of one pass.
pub(super) fn record(cfg: &Config, weights: Weights<'_>) -> Result<Recorded, ModelError> {
    let mut d = Decoder::new(weights.with_norms_from_one(), &cfg.sizes);
    // Layers that guess further tokens are not run.
    d.weights.ignore(&["mtp.", "model.mtp."]);
    ignore_guessing(&mut d.weights, cfg.sizes.num_hidden_layers);
    let rope_table = d.rope_table("rope.inv_freq", &cfg.rope)?; // [rows, rotary_dim]
    let [q_unit, k_unit] = cfg.delta.unit_weights();
    let units = [("delta.q_unit", q_unit), ("delta.k_unit", k_unit)];
    let units = units.map(|(name, values)| d.weights.computed(&mut d.b, name, values));
    let bias = cfg.attention_bias;
    let parts = AttentionParts { qkv_bias: bias, output_bias: bias, norms: QkNorms::Heads, gated: true };
    let spec = AttentionSpec::usual(&cfg.sizes, RopeLayout::Halves);
    let mut x = d.embed(); // [rows, hidden_size]
    for (layer, &attends) in cfg.attends.iter().enumerate() {
        d.b.set_layer(Some(layer));
        let h = d.norm(layer, "attn_norm", x);
        let h = if attends {
            let w = AttentionWeights::declare(&mut d.b, &mut d.weights, &cfg.sizes, layer, parts);
            d.attention(layer, h, rope_table, &w, &spec)
        } else {
            d.keep(LayerState::Recurrent(cfg.delta.state()));
            recurrent_layer(&mut d, cfg, layer, h, units)
        };
        x = d.b.add_assign(x, h);
        let h = d.norm(layer, "post_attention_norm", x);
        let h = d.sparse_or_dense(layer, h, cfg.moe.as_ref(), &cfg.sparse)?;
        x = d.b.add_assign(x, h);
    }
    d.finish(x, Head::default())
}

/// Counts the tensors of layers past the decoder's own as read: `blk.<layer>.` in GGUF files.
fn ignore_guessing(weights: &mut Weights<'_>, layers: usize) {
    if weights.dialect() != Dialect::Gguf {
        return;
    }
    let past = |name: &&str| {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        layer.is_some_and(|(layer, _)| layer.parse::<usize>().is_ok_and(|layer| layer >= layers))
    };
    let names: Vec<&str> = weights.checkpoint().tensor_names().filter(past).collect();
    for name in names {
        weights.mark_used(name);
    }
}

/// Records one gated delta net, its projections included. `x`: `[rows, hidden_size]`, same shape out.
fn recurrent_layer(d: &mut Decoder<'_>, cfg: &Config, layer: usize, x: Slot, [q_unit, k_unit]: [Slot; 2]) -> Slot {
    let (shape, hidden) = (&cfg.delta, cfg.sizes.hidden_size);
    let (b, w) = (&mut d.b, &mut d.weights);
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (per_key, keys) = (shape.value_heads / shape.key_heads, shape.key_head_dim);
    let values = per_key * shape.value_head_dim;
    // Rows of the projections that lie side by side for each key head.
    let group = |start: usize, len: usize, group_rows: usize| Rows::Groups { group_rows, start, len };
    let all = 2 * keys + 2 * values;
    let mut part_of =
        |w: &mut Weights<'_>, canonical: &str, stored: &str, stored_rows: usize, rows: &[Rows], out: usize| {
            let tensor = w.stored_name(&name(&format!("{stored}.weight")));
            let parts = rows
                .iter()
                .map(|&rows| Part { tensor: tensor.clone(), shape: vec![stored_rows, hidden], rows })
                .collect();
            w.declare(b, &name(&format!("{canonical}.weight")), &[out, hidden], Source::of(parts))
        };
    let (channels, value_width, heads) = (shape.channels(), shape.value_width(), shape.value_heads);
    let [qkv, z] = match cfg.projections {
        Projections::ByKeyHead => {
            let rows = shape.key_heads * all;
            let mixed = [group(0, keys, all), group(keys, keys, all), group(2 * keys, values, all)];
            let gate = [group(2 * keys + values, values, all)];
            [
                part_of(w, "attn_qkv", "ssm_in", rows, &mixed, channels),
                part_of(w, "attn_gate", "ssm_in", rows, &gate, value_width),
            ]
        }
        Projections::FactorsByKeyHead | Projections::Apart => [
            part_of(w, "attn_qkv", "attn_qkv", channels, &[Rows::All], channels),
            part_of(w, "attn_gate", "attn_gate", value_width, &[Rows::All], value_width),
        ],
    };
    let [beta, alpha] = match cfg.projections {
        Projections::ByKeyHead | Projections::FactorsByKeyHead => [
            part_of(w, "ssm_beta", "ssm_ba", 2 * heads, &[group(0, per_key, 2 * per_key)], heads),
            part_of(w, "ssm_alpha", "ssm_ba", 2 * heads, &[group(per_key, per_key, 2 * per_key)], heads),
        ],
        Projections::Apart => [
            part_of(w, "ssm_beta", "ssm_beta", heads, &[Rows::All], heads),
            part_of(w, "ssm_alpha", "ssm_alpha", heads, &[Rows::All], heads),
        ],
    };
    let (conv_shape, rate_map) = match w.dialect() {
        Dialect::Gguf => (vec![channels, shape.kernel], Map::Same),
        Dialect::HuggingFace => (vec![channels, 1, shape.kernel], Map::NegExp),
    };
    let conv_part = Part { tensor: w.stored_name(&name("ssm_conv1d.weight")), shape: conv_shape, rows: Rows::All };
    let rate = Source::whole(w.stored_name(&name("ssm_a")), &[heads]).with_map(rate_map);
    let weights = DeltaNetWeights {
        conv: w.declare(b, &name("ssm_conv1d.weight"), &[channels * shape.kernel], Source::of(vec![conv_part])),
        dt_bias: w.whole(b, &name("ssm_dt.bias"), &[heads]),
        decay_rate: w.declare(b, &name("ssm_a"), &[heads], rate),
        q_unit,
        k_unit,
        // Not one of the norms that are stored as their distance from one.
        norm: w.whole(b, &name("ssm_norm.weight"), &[shape.value_head_dim]),
        out: w.whole(b, &name("ssm_out.weight"), &[hidden, value_width]),
    };
    let made = b.linear_many(x, &[(qkv, None), (z, None), (alpha, None), (beta, None)]);
    let inputs = DeltaNetInputs { qkv: made[0], z: made[1], a: made[2], b: made[3] };
    delta_net(b, inputs, &weights, shape, cfg.sizes.rms_norm_eps, layer)
}

#[cfg(test)]
mod tests;
