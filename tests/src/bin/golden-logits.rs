//! Writes the logits of a prompt's last rows, as `plimsoll run --logits-out` does of all rows or one: for contexts whose logits would fill a disk.
//!
//! `golden-logits MODEL IDS_FILE ROWS OUT.safetensors` writes `ids` (i64) and `logits` (f32 `[rows, vocab]`).

use anyhow::{Context, Result};
use plimsoll_attention::KvDtype;
use plimsoll_models::CpuSettings;
use plimsoll_tests::{kl::last_logits, model};
use safetensors::{Dtype, tensor::TensorView};
use std::{env, fs, path::Path};

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [model, ids, rows, out] =
        args.try_into().ok().context("usage: golden-logits MODEL IDS_FILE ROWS OUT.safetensors")?;
    let text = fs::read_to_string(&ids).with_context(|| format!("cannot read {ids}"))?;
    let ids: Vec<u32> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().context("a token id")?;
    let rows: usize = rows.parse().context("a number of rows")?;
    let model = model::load(Path::new(&model))?;
    let vocab_size = model.architecture().dimensions.vocab_size;
    let mut logits = Vec::with_capacity(rows * vocab_size * 4);
    last_logits(&model, CpuSettings::detect(2, KvDtype::Bf16), &ids, rows, |_, row| {
        logits.extend(row.iter().flat_map(|value| value.to_le_bytes()));
    })?;
    let id_bytes: Vec<u8> = ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
    let tensors = [
        ("ids", TensorView::new(Dtype::I64, vec![ids.len()], &id_bytes)?),
        ("logits", TensorView::new(Dtype::F32, vec![rows, vocab_size], &logits)?),
    ];
    safetensors::serialize_to_file(tensors, None, Path::new(&out)).with_context(|| format!("cannot write {out}"))
}
