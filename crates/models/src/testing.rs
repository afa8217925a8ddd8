//! Tiny model files for the tests of this crate, key by key and tensor by tensor.

use crate::gguf::{GgmlType, Gguf, GgufWriter};
use std::collections::BTreeMap;

pub(crate) const VOCAB: usize = 32;

/// A metadata value to write.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Setting {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'static str),
}

/// A llama of two layers, 4 heads on 2 KV heads of 4, hidden 16; what is odd is set by the test.
#[derive(Debug, Clone)]
pub(crate) struct TinyLlama {
    keys: BTreeMap<String, Setting>,
    tensors: BTreeMap<String, (Vec<usize>, GgmlType)>,
}

impl TinyLlama {
    pub(crate) fn new() -> Self {
        let mut this = Self { keys: BTreeMap::new(), tensors: BTreeMap::new() };
        this.keys.insert("general.architecture".to_owned(), Setting::Text("llama"));
        for (key, value) in [
            ("context_length", 512),
            ("embedding_length", 16),
            ("block_count", 2),
            ("feed_forward_length", 24),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
        ] {
            this = this.with(key, Setting::U32(value));
        }
        this = this.with("attention.layer_norm_rms_epsilon", Setting::F32(1e-5));
        this = this.tensor("token_embd.weight", &[VOCAB, 16]).tensor("output_norm.weight", &[16]);
        for layer in 0..2 {
            for (name, shape) in [
                ("attn_norm", &[16][..]),
                ("ffn_norm", &[16]),
                ("attn_q", &[16, 16]),
                ("attn_k", &[8, 16]),
                ("attn_v", &[8, 16]),
                ("attn_output", &[16, 16]),
                ("ffn_gate", &[24, 16]),
                ("ffn_up", &[24, 16]),
                ("ffn_down", &[16, 24]),
            ] {
                this = this.tensor(&format!("blk.{layer}.{name}.weight"), shape);
            }
        }
        this
    }

    /// Sets `llama.<key>`.
    pub(crate) fn with(mut self, key: &str, value: Setting) -> Self {
        self.keys.insert(format!("llama.{key}"), value);
        self
    }

    /// Sets a key by its full name.
    pub(crate) fn with_full(mut self, key: &str, value: Setting) -> Self {
        self.keys.insert(key.to_owned(), value);
        self
    }

    /// Leaves `llama.<key>` out.
    pub(crate) fn without(mut self, key: &str) -> Self {
        self.keys.remove(&format!("llama.{key}"));
        self
    }

    /// Adds or replaces a tensor of f32.
    pub(crate) fn tensor(self, name: &str, shape: &[usize]) -> Self {
        self.typed(name, shape, GgmlType::F32)
    }

    /// Adds or replaces a tensor.
    pub(crate) fn typed(mut self, name: &str, shape: &[usize], kind: GgmlType) -> Self {
        self.tensors.insert(name.to_owned(), (shape.to_vec(), kind));
        self
    }

    /// Leaves a tensor out.
    pub(crate) fn without_tensor(mut self, name: &str) -> Self {
        self.tensors.remove(name);
        self
    }

    pub(crate) fn gguf(&self) -> Gguf {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.keys {
            match *value {
                Setting::U32(value) => writer.put(key, value),
                Setting::F32(value) => writer.put(key, value),
                Setting::Bool(value) => writer.put(key, value),
                Setting::Text(value) => writer.put(key, value),
            }
            .unwrap();
        }
        let mut random = Random(1);
        for (name, (shape, kind)) in &self.tensors {
            let elements: usize = shape.iter().product();
            let values =
                random.values(elements).into_iter().map(|value| if shape.len() == 1 { 1.0 + value } else { value });
            let data: Vec<u8> = match kind {
                GgmlType::F32 => values.flat_map(f32::to_le_bytes).collect(),
                GgmlType::F16 => values.flat_map(|value| half::f16::from_f32(value).to_le_bytes()).collect(),
                GgmlType::Bf16 => values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect(),
                // Blocks of zeros are valid in every block format.
                other => vec![0; elements / other.block_elements() * other.block_bytes()],
            };
            writer.tensor(name, shape, *kind, data).unwrap();
        }
        Gguf::from_bytes(writer.to_bytes()).unwrap()
    }
}

/// A linear congruential generator (Knuth's MMIX constants): the same numbers on every machine.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Values in -0.5..0.5.
    pub(crate) fn values(&mut self, count: usize) -> Vec<f32> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }
}
