//! GGUF files of every architecture: what each needs is taken, and what is missing, odd or not implemented is refused in one line.

#![expect(clippy::unwrap_used, reason = "a test may end at the first thing that is not there")]

use plimsoll_models::{
    LoadPlan, Model,
    gguf::{GgmlType, Gguf, GgufWriter},
};
use std::collections::BTreeMap;

/// A metadata value to write.
#[derive(Debug, Clone)]
enum Setting {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'static str),
    Flags(Vec<bool>),
}
use Setting::{Bool, F32, Flags, Text, U32};

/// A file before it is written.
#[derive(Debug, Clone)]
struct File {
    architecture: &'static str,
    keys: BTreeMap<String, Setting>,
    tensors: BTreeMap<String, (Vec<usize>, f32)>,
}

impl File {
    /// Two layers, 4 heads on 2 KV heads of 6, hidden 16, with the tensors that the architecture has.
    fn new(architecture: &'static str) -> Self {
        let mut this = Self { architecture, keys: BTreeMap::new(), tensors: BTreeMap::new() };
        for (key, value) in [
            ("context_length", 512),
            ("embedding_length", 16),
            ("block_count", 2),
            ("feed_forward_length", 24),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 6),
            ("attention.value_length", 6),
        ] {
            this.set(key, U32(value));
        }
        this.set("attention.layer_norm_rms_epsilon", F32(1e-6));
        this.tensor("token_embd.weight", &[32, 16]);
        this.tensor("output_norm.weight", &[16]);
        let (q_norms, biases, sandwich) = match architecture {
            "qwen2" => (false, true, false),
            "qwen3" => (true, false, false),
            "gemma3" => (true, false, true),
            _ => (false, false, false),
        };
        for layer in 0..2 {
            let mut add = |name: &str, shape: &[usize]| this.tensor(&format!("blk.{layer}.{name}"), shape);
            add("attn_norm.weight", &[16]);
            add("ffn_norm.weight", &[16]);
            for (name, shape) in [("attn_q", [24, 16]), ("attn_k", [12, 16]), ("attn_v", [12, 16])] {
                add(&format!("{name}.weight"), &shape);
                if biases {
                    add(&format!("{name}.bias"), &shape[..1]);
                }
            }
            add("attn_output.weight", &[16, 24]);
            add("ffn_gate.weight", &[24, 16]);
            add("ffn_up.weight", &[24, 16]);
            add("ffn_down.weight", &[16, 24]);
            if q_norms {
                add("attn_q_norm.weight", &[6]);
                add("attn_k_norm.weight", &[6]);
            }
            if sandwich {
                add("post_attention_norm.weight", &[16]);
                add("post_ffw_norm.weight", &[16]);
            }
        }
        this
    }

    fn set(&mut self, key: &str, value: Setting) {
        self.keys.insert(format!("{}.{key}", self.architecture), value);
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) {
        self.tensors.insert(name.to_owned(), (shape.to_vec(), 0.125));
    }

    fn gguf(&self) -> Gguf {
        let mut writer = GgufWriter::new();
        writer.put("general.architecture", self.architecture).unwrap();
        for (key, value) in &self.keys {
            match value {
                U32(value) => writer.put(key, *value),
                F32(value) => writer.put(key, *value),
                Bool(value) => writer.put(key, *value),
                Text(value) => writer.put(key, *value),
                Flags(values) => writer.put(key, values.as_slice()),
            }
            .unwrap();
        }
        for (name, (shape, value)) in &self.tensors {
            let count = shape.iter().product::<usize>();
            let bytes: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), count).flatten().collect();
            writer.tensor(name, shape, GgmlType::F32, bytes).unwrap();
        }
        Gguf::from_bytes(writer.to_bytes()).unwrap()
    }

    /// The line that the file is refused with.
    #[track_caller]
    fn refusal(&self) -> String {
        let line = match Model::from_gguf(&self.gguf(), 1) {
            Err(error) => error.to_string(),
            Ok(_) => panic!("{}: the file was taken: {:?}", self.architecture, self.keys),
        };
        assert!(!line.contains('\n') && line.chars().count() <= 500, "{line}");
        line
    }
}

const ALL: [&str; 4] = ["llama", "qwen2", "qwen3", "gemma3"];

#[test]
fn the_least_file_of_each_architecture_is_taken_at_its_price() {
    for architecture in ALL {
        let gguf = File::new(architecture).gguf();
        let planned_bytes =
            LoadPlan::new(&gguf).unwrap_or_else(|error| panic!("{architecture}: {error}")).weights_bytes();
        assert_eq!(Model::from_gguf(&gguf, 2).unwrap().weights_bytes(), planned_bytes, "{architecture}");
    }
}

#[test]
fn every_tensor_of_each_architecture_is_needed_but_the_output_bias() {
    for architecture in ALL {
        let whole = File::new(architecture);
        for name in whole.tensors.keys() {
            let mut file = whole.clone();
            file.tensors.remove(name);
            let line = file.refusal();
            assert!(line.contains(&format!("'{name}' is not in the file")), "{architecture} without {name}: {line}");
        }
        for more in ["blk.0.attn_sinks.weight", "blk.2.attn_q.weight", "output_norm.bias"] {
            let mut file = whole.clone();
            file.tensor(more, &[16]);
            let line = file.refusal();
            assert!(line.contains(more) && line.contains(architecture), "{architecture} with {more}: {line}");
        }
    }
}

#[test]
fn a_window_of_gemma_follows_its_period_or_its_flags() {
    let windows = |file: &File| -> Vec<Option<usize>> {
        let gguf = file.gguf();
        let plan = LoadPlan::new(&gguf).unwrap();
        let layers = &plan.architecture().layers;
        layers
            .iter()
            .map(|layer| match layer {
                plimsoll_models::arch::LayerState::Kv(shape) => shape.window,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    let mut file = File::new("gemma3");
    assert_eq!(windows(&file), [None, None], "no window in the file");
    file.set("attention.sliding_window", U32(8));
    assert_eq!(windows(&file), [Some(8), Some(8)], "the sixth layer would see all");
    file.set("attention.sliding_window_pattern", U32(2));
    assert_eq!(windows(&file), [Some(8), None]);
    file.set("attention.sliding_window_pattern", Flags(vec![false, true]));
    assert_eq!(windows(&file), [None, Some(8)]);
    file.set("attention.sliding_window_pattern", Flags(vec![true]));
    assert!(file.refusal().contains("one flag for each of the 2 layers"));
}

#[test]
fn settings_that_are_not_implemented_or_absurd_are_refused_by_name() {
    let cases: [(&str, Setting, &str); 21] = [
        ("attention.causal", Bool(false), "supported: 1"),
        ("attention.clamp_kqv", F32(8.0), "supported: 0"),
        ("attention.indexer.head_count", U32(2), "not known here"),
        ("attention.layer_norm_rms_epsilon", F32(f32::NAN), "from 0 to 1"),
        ("attention.key_length", U32(1 << 30), "65536"),
        ("attention.value_length", U32(8), "6, the key length"),
        ("attention.head_count", U32(3), "not divisible"),
        ("attention.head_count_kv", U32(0), "out of range 1"),
        ("block_count", U32(1000), "out of range 1"),
        ("context_length", U32(0), "out of range 1"),
        ("embedding_length", U32(17), "expected [32, 17]"),
        ("feed_forward_length", Text("many"), "holds"),
        ("expert_weights_scale", F32(2.0), "not known here"),
        ("rope.dimension_count", U32(5), "an even number"),
        ("rope.dimension_sections", U32(2), "not known here"),
        ("rope.freq_base", F32(0.5), "above 1"),
        ("rope.scaling.factor", F32(1e-45), "positive number"),
        ("rope.scaling.type", Text("longrope\nx"), "longrope\\nx"),
        ("rope.scaling.yarn_attn_factor", F32(1.5), "supported: 1"),
        ("ssm.state_size", U32(16), "not known here"),
        ("use_parallel_residual", Bool(true), "supported: 0"),
    ];
    for architecture in ALL {
        for (key, value, part) in &cases {
            let mut file = File::new(architecture);
            file.set(key, value.clone());
            let line = file.refusal();
            let named = *key == "embedding_length" || line.contains(key);
            assert!(named && line.contains(part), "{architecture}.{key}: {line}");
        }
    }
    for (architecture, key, value, part) in [
        ("qwen2", "attention.sliding_window", U32(64), "supported: 0"),
        ("qwen3", "expert_count", U32(8), "supported: 0"),
        ("qwen3", "attention.scale", F32(f32::NAN), "1 / sqrt"),
        ("gemma3", "attention.scale", F32(f32::INFINITY), "from 0 to 1000"),
        ("gemma3", "final_logit_softcapping", F32(-30.0), "from 0 to"),
        ("gemma3", "final_logit_softcapping", F32(1e-9), "from 0.01"),
        ("gemma3", "rope.freq_base_swa", F32(f32::NAN), "a number from"),
        ("gemma3", "attention.sliding_window_pattern", U32(0), "out of range 1"),
        ("llama", "final_logit_softcapping", F32(30.0), "supported: 0"),
    ] {
        let mut file = File::new(architecture);
        file.set(key, value);
        let line = file.refusal();
        assert!(line.contains(key) && line.contains(part), "{architecture}.{key}: {line}");
    }
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_name() {
    for (name, value) in [("blk.1.attn_norm.weight", f32::NAN), ("blk.0.ffn_down.weight", f32::INFINITY)] {
        let mut file = File::new("qwen3");
        file.tensors.get_mut(name).unwrap().1 = value;
        let line = file.refusal();
        assert!(line.contains(name) && line.contains("element 0"), "{line}");
    }
}
