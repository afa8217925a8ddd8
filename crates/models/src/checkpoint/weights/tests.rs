use super::*;
use crate::{checkpoint::Folder, model::plain_values};
use safetensors::{Dtype, tensor::TensorView};
use tempfile::TempDir;

/// A folder with these f32 tensors, whose values count up over all of them.
fn folder(tensors: &[(&str, &[usize])]) -> (TempDir, Folder) {
    let path = TempDir::new().unwrap();
    let mut next = 0.0f32;
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| {
            let mut values = Vec::new();
            for _ in 0..shape.iter().product::<usize>() {
                values.extend(next.to_le_bytes());
                next += 1.0;
            }
            values
        })
        .collect();
    let views = tensors.iter().zip(&bytes);
    let views =
        views.map(|((name, shape), bytes)| (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
    std::fs::write(path.path().join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    std::fs::write(path.path().join("config.json"), "{}").unwrap();
    let folder = Folder::open(path.path()).unwrap();
    (path, folder)
}

/// All values of a declared constant, in the order of its rows.
fn values(weights: &Weights<'_>, slot: Slot, shape: &[usize]) -> Vec<f32> {
    let source = &weights.sources[&slot];
    let resolved = source.resolve("a constant", shape, weights.checkpoint).unwrap();
    let row_bytes = 4 * resolved.row_elements;
    let mut all = Vec::new();
    for (part, rows) in source.runs(&resolved, 0..usize::MAX) {
        let bytes = &resolved.tensors[part].data[rows.start * row_bytes..rows.end * row_bytes];
        all.extend(plain_values(resolved.stored, bytes).map(|value| source.map.apply(value)));
    }
    all
}

fn counting(range: std::ops::Range<usize>) -> Vec<f32> {
    range.map(|value| value as f32).collect()
}

#[test]
fn experts_are_the_same_one_by_one_and_in_one_tensor() {
    let shape = [3, 2, 4];
    let mut b = ProgramBuilder::new();
    // Expert by expert: gate rows, then up rows, as the fused tensor has them.
    let names: Vec<String> = (0..3)
        .flat_map(|expert| {
            ["gate_proj", "up_proj"].map(|role| format!("model.layers.0.mlp.experts.{expert}.{role}.weight"))
        })
        .collect();
    let single: Vec<(&str, &[usize])> = names.iter().map(|name| (name.as_str(), &[2, 4][..])).collect();
    let (_kept, single) = folder(&single);
    let (_kept_too, fused) = folder(&[("model.layers.0.mlp.experts.gate_up_proj", &[3, 4, 4])]);
    for (canonical, first) in [("blk.0.ffn_gate_exps.weight", 0), ("blk.0.ffn_up_exps.weight", 8)] {
        let want: Vec<f32> = (0..3).flat_map(|expert| counting(expert * 16 + first..expert * 16 + first + 8)).collect();
        for source in [&single, &fused] {
            let mut weights = Weights::of_folder(source, &[]);
            let slot = weights.experts(&mut b, canonical, shape);
            assert_eq!(values(&weights, slot, &shape), want, "{canonical}");
            b = ProgramBuilder::new();
        }
    }
    let (_kept, down) = folder(&[("model.layers.0.mlp.experts.down_proj", &[3, 4, 2])]);
    let mut weights = Weights::of_folder(&down, &[]);
    let slot = weights.experts(&mut b, "blk.0.ffn_down_exps.weight", [3, 4, 2]);
    assert_eq!(values(&weights, slot, &[3, 4, 2]), counting(0..24));
}

#[test]
fn rows_of_a_fused_tensor_become_weights_of_their_own() {
    let stored = "model.layers.0.self_attn.qkv_proj";
    let (_kept, source) = folder(&[(&format!("{stored}.weight"), &[6, 2]), (&format!("{stored}.bias"), &[6])]);
    let (mut b, mut weights) = (ProgramBuilder::new(), Weights::of_folder(&source, &[]));
    let k = Rows::Groups { group_rows: 6, start: 2, len: 1 };
    let linear = weights.linear_rows(&mut b, "blk.0.attn_k", [1, 2], (stored, 6, k), Bias::IfPresent);
    assert_eq!(values(&weights, linear.weight, &[1, 2]), [4.0, 5.0]);
    assert_eq!(values(&weights, linear.bias.unwrap(), &[1]), [14.0]);
}

#[test]
fn norms_are_counted_from_one_in_folders_only() {
    let (_kept, source) = folder(&[("model.norm.weight", &[3])]);
    let mut b = ProgramBuilder::new();
    let mut weights = Weights::of_folder(&source, &[]).with_norms_from_one();
    let slot = weights.norm(&mut b, "output_norm.weight", 3);
    assert_eq!(values(&weights, slot, &[3]), [1.0, 2.0, 3.0]);
    let mut plain = Weights::of_folder(&source, &[]);
    let slot = plain.norm(&mut ProgramBuilder::new(), "output_norm.weight", 3);
    assert_eq!(values(&plain, slot, &[3]), [0.0, 1.0, 2.0]);
}

#[test]
fn a_tied_head_is_the_table_and_a_copy_that_differs_is_refused() {
    let (_kept, source) = folder(&[("model.embed_tokens.weight", &[2, 2]), ("lm_head.weight", &[2, 2])]);
    let (mut b, mut weights) = (ProgramBuilder::new(), Weights::of_folder(&source, &[]));
    let table = weights.whole(&mut b, "token_embd.weight", &[2, 2]);
    assert!(matches!(weights.head(&mut b, table, true, [2, 2]), Err(ModelError::TiedHeadDiffers { .. })));
    let own = weights.head(&mut b, table, false, [2, 2]).unwrap();
    assert_ne!(own, table);
}
