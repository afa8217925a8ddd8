//! The peer that prefill speed is measured against: candle-transformers' `quantized_llama`, one pass over the whole prompt on the CPU.
//!
//! `peer-candle MODEL.gguf IDS_FILE` prints one JSON object: tokens, seconds, tokens_per_second. Loading is not timed.
#![expect(clippy::print_stdout, reason = "a program's output")]

use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor, quantized::gguf_file};
use candle_transformers::models::quantized_llama::ModelWeights;
use std::{env, fs, time::Instant};

fn main() -> Result<()> {
    let [model, ids] =
        env::args().skip(1).collect::<Vec<_>>().try_into().ok().context("usage: peer-candle MODEL IDS_FILE")?;
    let ids: Vec<u32> = fs::read_to_string(&ids)
        .with_context(|| format!("cannot read {ids}"))?
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    if ids.is_empty() {
        bail!("no token ids");
    }
    let mut file = fs::File::open(&model).with_context(|| format!("cannot read {model}"))?;
    let content = gguf_file::Content::read(&mut file)?;
    let mut weights = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    // One pass beforehand: candle repacks weights at their first use.
    let input = Tensor::new(ids.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
    weights.forward(&input.narrow(1, 0, ids.len().min(64))?, 0)?;
    let start = Instant::now();
    let logits = weights.forward(&input, 0)?;
    let best = logits.squeeze(0)?.argmax(0)?.to_scalar::<u32>()?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{{\"tokens\": {}, \"seconds\": {seconds:.6}, \"tokens_per_second\": {:.3}, \"argmax\": {best}}}",
        ids.len(),
        ids.len() as f64 / seconds
    );
    Ok(())
}
