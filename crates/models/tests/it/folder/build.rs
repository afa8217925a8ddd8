//! A tiny llama as a folder, field by field and tensor by tensor.

use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, fs, path::Path};
use tempfile::TempDir;

pub(crate) const VOCAB: usize = 32;
pub(crate) const HIDDEN: usize = 16;

/// What is written to a folder.
#[derive(Debug, Clone)]
pub(crate) struct Build {
    pub(crate) config: Map<String, Value>,
    pub(crate) tensors: BTreeMap<String, (Vec<usize>, Dtype, Vec<u8>)>,
    /// More files, by name; written last.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// Names of weight files that the tensors are dealt to; one is `model.safetensors`.
    pub(crate) shards: Vec<String>,
}

impl Build {
    /// Two layers, 4 heads on 2 KV heads of 4, f32.
    pub(crate) fn llama() -> Self {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "rope_theta": 10000.0, "torch_dtype": "float32",
            "eos_token_id": 2,
        });
        let Value::Object(config) = config else { unreachable!("an object was written") };
        let mut this = Self { config, tensors: BTreeMap::new(), files: BTreeMap::new(), shards: vec![] };
        this.tensor("model.embed_tokens.weight", &[VOCAB, HIDDEN]).tensor("model.norm.weight", &[HIDDEN]);
        for layer in 0..2 {
            for (name, shape) in [
                ("input_layernorm", &[HIDDEN][..]),
                ("post_attention_layernorm", &[HIDDEN]),
                ("self_attn.q_proj", &[16, HIDDEN]),
                ("self_attn.k_proj", &[8, HIDDEN]),
                ("self_attn.v_proj", &[8, HIDDEN]),
                ("self_attn.o_proj", &[HIDDEN, 16]),
                ("mlp.gate_proj", &[24, HIDDEN]),
                ("mlp.up_proj", &[24, HIDDEN]),
                ("mlp.down_proj", &[HIDDEN, 24]),
            ] {
                this.tensor(&format!("model.layers.{layer}.{name}.weight"), shape);
            }
        }
        this
    }

    /// Adds or replaces a tensor of f32 that counts up in small steps.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize]) -> &mut Self {
        let count: usize = shape.iter().product();
        let value = |index: usize| ((index * 37 + name.len() * 11) % 101) as f32 / 101.0 - 0.5;
        let bytes = (0..count).flat_map(|index| value(index).to_le_bytes()).collect();
        self.tensors.insert(name.to_owned(), (shape.to_vec(), Dtype::F32, bytes));
        self
    }

    pub(crate) fn set(&mut self, field: &str, value: Value) -> &mut Self {
        self.config.insert(field.to_owned(), value);
        self
    }

    pub(crate) fn file(&mut self, name: &str, contents: impl Into<Vec<u8>>) -> &mut Self {
        self.files.insert(name.to_owned(), contents.into());
        self
    }

    /// The bytes of a safetensors file with the tensors that `wanted` picks.
    pub(crate) fn safetensors(&self, wanted: impl Fn(usize) -> bool) -> Vec<u8> {
        let chosen = self.tensors.iter().enumerate().filter(|(index, _)| wanted(*index));
        let views = chosen.map(|(_, (name, (shape, dtype, bytes)))| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }

    /// The index of the shards that [`Build::write`] deals tensors to.
    pub(crate) fn index(&self) -> Value {
        let shard = |index: usize| Value::from(self.shards[index % self.shards.len()].as_str());
        let map: Map<String, Value> =
            self.tensors.keys().enumerate().map(|(index, name)| (name.clone(), shard(index))).collect();
        json!({ "metadata": {}, "weight_map": map })
    }

    pub(crate) fn write_to(&self, folder: &Path) {
        fs::write(folder.join("config.json"), serde_json::to_vec(&self.config).unwrap()).unwrap();
        if self.shards.is_empty() {
            fs::write(folder.join("model.safetensors"), self.safetensors(|_| true)).unwrap();
        } else {
            for (number, name) in self.shards.iter().enumerate() {
                let bytes = self.safetensors(|index| index % self.shards.len() == number);
                fs::write(folder.join(name), bytes).unwrap();
            }
            fs::write(folder.join("model.safetensors.index.json"), self.index().to_string()).unwrap();
        }
        for (name, contents) in &self.files {
            fs::write(folder.join(name), contents).unwrap();
        }
    }

    pub(crate) fn write(&self) -> TempDir {
        let folder = TempDir::new().unwrap();
        self.write_to(folder.path());
        folder
    }
}
