//! Runs one prompt in a process with a past, and prints its kernels and the hash of its last logits.
//!
//! `history MODEL TOKENS [EARLIER]..`: `MODEL` is a file or `random`; each `EARLIER` is a prompt of so many tokens that the same executor
//! answers first, with a token of decode after it. One line: routes, then the SHA-256 of the last row's little-endian f32.
#![expect(clippy::print_stdout, reason = "a program's output")]

use anyhow::{Context, Result};
use plimsoll_attention::KvDtype;
use plimsoll_models::{CpuExecutor, CpuSettings, LogitRows};
use plimsoll_tests::{
    compare::argmax,
    model::{RandomLlama, load},
    pass::{chunks, feed, new_sequence},
    random::Random,
};
use sha2::{Digest, Sha256};
use std::{env, fmt::Write, path::Path, sync::Arc};

fn main() -> Result<()> {
    let mut args = env::args().skip(1);
    let usage = "usage: history MODEL TOKENS [EARLIER]..";
    let model = args.next().context(usage)?;
    let counts: Vec<usize> = args.map(|count| count.parse()).collect::<Result<_, _>>().context(usage)?;
    let (&tokens, earlier) = counts.split_first().context(usage)?;
    let model = if model == "random" { RandomLlama::small(3).model(7)? } else { load(Path::new(&model))? };
    let vocab_size = model.architecture().dimensions.vocab_size;
    let settings = CpuSettings::detect(2, KvDtype::Bf16);
    let mut executor = CpuExecutor::new(Arc::clone(&model), settings)?;

    for (i, &count) in earlier.iter().enumerate() {
        let prompt = Random::new(100 + i as u64).tokens(count, vocab_size);
        let mut sequence = new_sequence(&model, settings.kv_dtype, count + 1)?;
        let mut next = 0;
        feed(&mut executor, &mut sequence, &prompt, &chunks(count, 512), LogitRows::Last, &mut (), |_, row| {
            next = argmax(row);
        })?;
        feed(&mut executor, &mut sequence, &[next], &[1], LogitRows::Last, &mut (), |_, _| ())?;
    }

    let prompt = Random::new(1).tokens(tokens, vocab_size);
    let mut sequence = new_sequence(&model, settings.kv_dtype, tokens)?;
    let mut hash = String::new();
    feed(&mut executor, &mut sequence, &prompt, &chunks(tokens, 512), LogitRows::Last, &mut (), |_, row| {
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        hash.clear();
        for byte in Sha256::digest(bytes) {
            let _ = write!(hash, "{byte:02x}");
        }
    })?;
    println!("{} {hash}", executor.routes(tokens.min(512)).join(","));
    Ok(())
}
