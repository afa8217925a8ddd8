//! Model files to break: a golden file taken apart, and a model made to measure.

use plimsoll_models::gguf::{GgmlType, Gguf, GgufWriter, Value};
use std::path::Path;

/// A metadata value to write.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Setting {
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Numbers(Vec<i32>),
    Scores(Vec<f32>),
}

#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: GgmlType,
    pub(crate) data: Vec<u8>,
}

/// All that a model file holds.
#[derive(Debug, Clone)]
pub(crate) struct ModelFile {
    pub(crate) keys: Vec<(String, Setting)>,
    pub(crate) tensors: Vec<Tensor>,
}

impl ModelFile {
    /// A file that can be read, in its parts.
    pub(crate) fn read(path: &Path) -> Self {
        let gguf = Gguf::open(path).unwrap();
        let setting = |value| match value {
            Value::U32(value) => Setting::U32(value),
            Value::I32(value) => Setting::I32(value),
            Value::F32(value) => Setting::F32(value),
            Value::Bool(value) => Setting::Bool(value),
            Value::String(text) => Setting::Text(text.to_owned()),
            Value::Array(array) => match array.strings() {
                Some(texts) => Setting::Texts(texts.map(str::to_owned).collect()),
                None => {
                    let number = |value: Value<'_>| i32::try_from(value.as_integer().unwrap()).unwrap();
                    Setting::Numbers(array.iter().map(number).collect())
                }
            },
            other => panic!("{other:?} is not written by the goldens"),
        };
        let keys = gguf.metadata().filter(|(key, _)| *key != "general.alignment");
        Self {
            keys: keys.map(|(key, value)| (key.to_owned(), setting(value))).collect(),
            tensors: gguf
                .tensors()
                .map(|tensor| Tensor {
                    name: tensor.name().to_owned(),
                    shape: tensor.shape().to_vec(),
                    kind: tensor.ggml_type(),
                    data: tensor.data().to_vec(),
                })
                .collect(),
        }
    }

    /// A llama of one layer, of few weights, whose KV is as wide as `kv_heads` heads of 64.
    pub(crate) fn wide(kv_heads: u32) -> Self {
        let width = kv_heads as usize * 64;
        let keys = [
            ("context_length", 4096),
            ("embedding_length", 4),
            ("block_count", 1),
            ("feed_forward_length", 4),
            ("attention.head_count", kv_heads),
            ("attention.head_count_kv", kv_heads),
            ("attention.key_length", 64),
            ("attention.value_length", 64),
        ];
        let keys = keys.map(|(key, value)| (format!("llama.{key}"), Setting::U32(value)));
        let mut file = Self { keys: keys.to_vec(), tensors: Vec::new() };
        file.set("general.architecture", Setting::Text("llama".to_owned()));
        file.set("llama.attention.layer_norm_rms_epsilon", Setting::F32(1e-5));
        for (name, shape) in [
            ("token_embd.weight", &[16, 4][..]),
            ("output_norm.weight", &[4]),
            ("blk.0.attn_norm.weight", &[4]),
            ("blk.0.ffn_norm.weight", &[4]),
            ("blk.0.attn_q.weight", &[width, 4]),
            ("blk.0.attn_k.weight", &[width, 4]),
            ("blk.0.attn_v.weight", &[width, 4]),
            ("blk.0.attn_output.weight", &[4, width]),
            ("blk.0.ffn_gate.weight", &[4, 4]),
            ("blk.0.ffn_up.weight", &[4, 4]),
            ("blk.0.ffn_down.weight", &[4, 4]),
        ] {
            file.add(name, shape);
        }
        file
    }

    /// [`ModelFile::wide`] with a SentencePiece vocabulary: three special tokens, then ` a` to ` m`.
    pub(crate) fn sentencepiece() -> Self {
        let mut file = Self::wide(1);
        let words = ('a'..='m').map(|letter| format!("▁{letter}"));
        let tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter().chain(words).collect();
        let kinds = [2, 3, 3].into_iter().chain([1; 13]).collect();
        file.set("tokenizer.ggml.model", Setting::Text("llama".to_owned()));
        file.set("tokenizer.ggml.scores", Setting::Scores((0..16u8).map(|id| -f32::from(id)).collect()));
        file.set("tokenizer.ggml.tokens", Setting::Texts(tokens));
        file.set("tokenizer.ggml.token_type", Setting::Numbers(kinds));
        for (name, id) in [("unknown", 0), ("bos", 1), ("eos", 2)] {
            file.set(&format!("tokenizer.ggml.{name}_token_id"), Setting::U32(id));
        }
        file
    }

    /// Adds a tensor of f32 with some values.
    pub(crate) fn add(&mut self, name: &str, shape: &[usize]) {
        let elements: usize = shape.iter().product();
        let data = (0..elements).flat_map(|i| (((i * 37 + 11) % 64) as f32 / 64.0 - 0.5).to_le_bytes()).collect();
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), kind: GgmlType::F32, data });
    }

    pub(crate) fn set(&mut self, key: &str, value: Setting) {
        self.remove(key);
        self.keys.push((key.to_owned(), value));
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.keys.retain(|(name, _)| name != key);
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.keys {
            match value {
                Setting::U32(value) => writer.put(key, *value),
                Setting::I32(value) => writer.put(key, *value),
                Setting::F32(value) => writer.put(key, *value),
                Setting::Bool(value) => writer.put(key, *value),
                Setting::Text(value) => writer.put(key, value.as_str()),
                Setting::Texts(values) => writer.put(key, values.iter().map(String::as_str).collect::<Vec<_>>()),
                Setting::Numbers(values) => writer.put(key, values.clone()),
                Setting::Scores(values) => writer.put(key, values.clone()),
            }
            .unwrap();
        }
        for Tensor { name, shape, kind, data } in &self.tensors {
            writer.tensor(name, shape, *kind, &data[..]).unwrap();
        }
        writer.to_bytes()
    }
}
