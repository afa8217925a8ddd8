//! What a process did before changes neither the kernels of a prompt nor a bit of its logits.

use anyhow::{Context, Result, ensure};
use plimsoll_tests::{golden::folder, model::MODEL_VARIABLE};
use std::{env, process::Command};

/// The line of a fresh process: `tokens` tokens after prompts of `earlier` tokens.
fn line(model: &str, tokens: usize, earlier: &[usize]) -> Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_history"))
        .arg(model)
        .args([tokens].iter().chain(earlier).map(usize::to_string))
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[test]
fn four_fresh_processes_with_other_pasts_have_one_route_and_one_hash() -> Result<()> {
    let golden = folder().join("tiny-gemma3").join("model.gguf");
    let real = env::var(MODEL_VARIABLE).ok();
    let models = ["random", golden.to_str().context("a path in UTF-8")?];
    for model in models.into_iter().chain(real.as_deref()) {
        // Two cold ones, one after a small request, one after a long one.
        let lines = [&[][..], &[], &[9], &[900]].map(|earlier| line(model, 257, earlier));
        let lines = lines.into_iter().collect::<Result<Vec<_>>>()?;
        ensure!(lines[0].starts_with("attention:"), "{}", lines[0]);
        for (i, line) in lines.iter().enumerate() {
            ensure!(*line == lines[0], "{model}, history {i}: {line}, but {} at first", lines[0]);
        }
        // Another prompt has another hash: the comparison can fail.
        let (_, hash) = lines[0].rsplit_once(' ').context("a hash")?;
        ensure!(!line(model, 256, &[])?.ends_with(hash), "{model}: prompts of 256 and of 257 tokens have one hash");
    }
    Ok(())
}
