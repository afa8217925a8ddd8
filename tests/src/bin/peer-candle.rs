//! The peer that speed is measured against: candle-transformers' `quantized_llama` or `quantized_gemma3`, one pass over the whole prompt on
//! the CPU, then one token at a time.
//!
//! `peer-candle MODEL.gguf IDS_FILE [DECODED_TOKENS]` prints one JSON object: `prefill` and `decode`, each with tokens and seconds. Loading
//! is not timed.
#![expect(clippy::print_stdout, reason = "a program's output")]

use anyhow::{Context, Result, bail};
use candle_core::{Device, Tensor, quantized::gguf_file};
use candle_transformers::models::{quantized_gemma3, quantized_llama};
use std::{env, fs, time::Instant};

enum Model {
    Llama(quantized_llama::ModelWeights),
    Gemma3(quantized_gemma3::ModelWeights),
}

impl Model {
    fn load(path: &str) -> Result<Self> {
        let mut file = fs::File::open(path).with_context(|| format!("cannot read {path}"))?;
        let content = gguf_file::Content::read(&mut file)?;
        let architecture =
            content.metadata.get("general.architecture").context("no architecture")?.to_string()?.clone();
        Ok(match architecture.as_str() {
            "llama" => Self::Llama(quantized_llama::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?),
            "gemma3" => Self::Gemma3(quantized_gemma3::ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?),
            other => bail!("candle-transformers is asked for llama and gemma3 only, not {other}"),
        })
    }

    /// The likeliest token after `ids`, the first of which stands at `start`.
    fn next(&mut self, ids: &[u32], start: usize) -> Result<u32> {
        let input = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        let logits = match self {
            Self::Llama(model) => model.forward(&input, start)?,
            Self::Gemma3(model) => model.forward(&input, start)?,
        };
        Ok(logits.squeeze(0)?.argmax(0)?.to_scalar::<u32>()?)
    }
}

fn main() -> Result<()> {
    let mut args = env::args().skip(1);
    let (Some(model), Some(ids)) = (args.next(), args.next()) else {
        bail!("usage: peer-candle MODEL IDS_FILE [DECODED_TOKENS]")
    };
    let decoded = args.next().map_or(Ok(0), |text| text.parse::<usize>()).context("a number of tokens to decode")?;
    let ids: Vec<u32> = fs::read_to_string(&ids)
        .with_context(|| format!("cannot read {ids}"))?
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    if ids.is_empty() {
        bail!("no token ids");
    }
    let mut model = Model::load(&model)?;
    // One pass beforehand: candle repacks weights at their first use.
    model.next(&ids[..ids.len().min(64)], 0)?;
    let start = Instant::now();
    let mut token = model.next(&ids, 0)?;
    let prefill = start.elapsed().as_secs_f64();
    let start = Instant::now();
    for index in 0..decoded {
        token = model.next(&[token], ids.len() + index)?;
    }
    let decode = start.elapsed().as_secs_f64();
    println!(
        "{{\"prefill\": {{\"tokens\": {}, \"seconds\": {prefill:.6}}}, \"decode\": {{\"tokens\": {decoded}, \"seconds\": {decode:.6}}}, \
         \"last_token\": {token}}}",
        ids.len(),
    );
    Ok(())
}
