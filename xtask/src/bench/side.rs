//! Who is measured, with which command, and what their figures are read from.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::model::Model;
use super::options::TorchDtype;
use crate::shell;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Side {
    /// Our program; what is `None` is its own choice.
    Plimsoll { cpu: Option<String>, kv_dtype: Option<String>, chunk: Option<usize> },
    /// One build of llama.cpp.
    Llama { label: Option<String>, path: PathBuf },
    /// `cpu`: the instruction set that it is limited to; no longer prompts than `most_tokens`.
    Torch { python: PathBuf, dtype: TorchDtype, cpu: Option<String>, most_tokens: usize },
    /// No longer prompts than `most_tokens`.
    Candle { most_tokens: usize },
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Task {
    Prefill { tokens: usize },
    Decode { context: usize, tokens: usize },
    Load,
}

/// Settings of a side of which the best counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    Only,
    Llama { flash_attention: bool, ubatch: usize },
}

/// What a side says of one run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figures {
    pub(super) tokens: usize,
    pub(super) seconds: f64,
    pub(super) detail: String,
}

/// From this length on a peer gets no whole pass beforehand: it would double minutes, and what a first pass pays once is lost in them.
const COLD_TOKENS: usize = 4096;

impl Side {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Plimsoll { cpu, kv_dtype, chunk } => {
                let mut name = "plimsoll".to_owned();
                if let Some(cpu) = cpu {
                    name = format!("{name} {cpu}");
                }
                if let Some(kv_dtype) = kv_dtype {
                    name = format!("{name}, KV {kv_dtype}");
                }
                if let Some(chunk) = chunk {
                    name = format!("{name}, chunks of {chunk}");
                }
                name
            }
            Self::Llama { label: None, .. } => "llama.cpp".to_owned(),
            Self::Llama { label: Some(label), .. } => format!("llama.cpp {label}"),
            Self::Torch { dtype, cpu: None, .. } => format!("torch {}", dtype.name()),
            Self::Torch { dtype, cpu: Some(cpu), .. } => format!("torch {} {cpu}", dtype.name()),
            Self::Candle { .. } => "candle-transformers".to_owned(),
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Self::Plimsoll { .. })
    }

    /// Why the side has no part in a task, if it has none.
    pub(super) fn declines(&self, task: Task, model: &Model) -> Option<String> {
        let why = match (self, task) {
            (Self::Torch { .. } | Self::Candle { .. }, Task::Load) => "is asked for no load time".to_owned(),
            (Self::Torch { .. }, _) if model.config.is_none() => {
                format!("no config.json of {} to build its shape from", model.name)
            }
            (
                Self::Candle { most_tokens } | Self::Torch { most_tokens, .. },
                Task::Prefill { tokens } | Task::Decode { context: tokens, .. },
            ) if tokens > *most_tokens => {
                format!("left out above {most_tokens} tokens (--candle-tokens, --torch-tokens)")
            }
            (Self::Candle { .. } | Self::Llama { .. }, _) if model.path.is_dir() => "reads GGUF files only".to_owned(),
            _ => return None,
        };
        Some(format!("{}: {why}", self.name()))
    }

    /// Settings to try; the best counts.
    pub(super) fn variants(&self, task: Task) -> Vec<Variant> {
        let Self::Llama { .. } = self else { return vec![Variant::Only] };
        let of = |ubatch| [false, true].map(|flash_attention| Variant::Llama { flash_attention, ubatch });
        match task {
            // A prompt in one piece of either size is the same run.
            Task::Prefill { tokens } if tokens > 512 => [of(512), of(2048)].concat(),
            Task::Prefill { .. } | Task::Decode { .. } => of(512).to_vec(),
            Task::Load => vec![Variant::Llama { flash_attention: true, ubatch: 512 }],
        }
    }

    /// `ids`: the prompt as a file of token ids.
    pub(super) fn command(&self, task: Task, variant: Variant, model: &Model, ids: &Path, threads: usize) -> Command {
        let (prompt, decode) = match task {
            Task::Prefill { tokens } => (tokens, 0),
            Task::Decode { context, tokens } => (context, tokens),
            Task::Load => (1, 0),
        };
        let mut command;
        match self {
            Self::Plimsoll { cpu, kv_dtype, chunk } => {
                command = Command::new(shell::release_binary("plimsoll"));
                command.args(["run", "--raw", "--json", "--temperature", "0"]);
                // The first token comes from the prompt's own logits: no pass of decode.
                let most = if decode == 0 { 0 } else { decode + 1 };
                command.arg("--max-tokens").arg(most.to_string()).arg("--threads").arg(threads.to_string());
                command.arg("--model").arg(&model.path).arg("--token-ids").arg(ids);
                for (flag, value) in [("--cpu", cpu), ("--kv-dtype", kv_dtype)] {
                    if let Some(value) = value {
                        command.arg(flag).arg(value);
                    }
                }
                if let Some(chunk) = chunk {
                    command.arg("--chunk").arg(chunk.to_string());
                }
            }
            Self::Llama { path, .. } => {
                command = Command::new(path);
                command.arg("-m").arg(&model.path).args(["-o", "json", "-r", "1", "-t", &threads.to_string()]);
                if let Variant::Llama { flash_attention, ubatch } = variant {
                    command.args(["-fa", if flash_attention { "1" } else { "0" }, "-ub", &ubatch.to_string()]);
                }
                if decode == 0 {
                    command.args(["-p", &prompt.to_string(), "-n", "0"]);
                } else {
                    command.args(["-p", "0", "-n", &decode.to_string(), "-d", &prompt.to_string()]);
                }
                if task == Task::Load || (decode == 0 && prompt >= COLD_TOKENS) {
                    command.arg("--no-warmup");
                }
            }
            Self::Torch { python, dtype, cpu, .. } => {
                command = Command::new(python);
                command.arg(shell::root().join("benches/peers/torch_prefill.py"));
                command.arg("--config").args(&model.config).args(["--dtype", dtype.name()]);
                command.args(["--tokens", &prompt.to_string(), "--decode", &decode.to_string()]);
                command.args(["--threads", &threads.to_string()]).env("OMP_NUM_THREADS", threads.to_string());
                if let Some(cpu) = cpu {
                    // Of its own kernels, of oneDNN's and of MKL's.
                    command.env("ATEN_CPU_CAPABILITY", cpu).env("ONEDNN_MAX_CPU_ISA", onednn_isa(cpu));
                    command.env("MKL_ENABLE_INSTRUCTIONS", cpu.to_uppercase());
                }
            }
            Self::Candle { .. } => {
                command = Command::new(shell::release_binary("peer-candle"));
                command.arg(&model.path).arg(ids).arg(decode.to_string());
                command.env("RAYON_NUM_THREADS", threads.to_string());
            }
        }
        command
    }

    /// Figures of a task out of what the command printed.
    ///
    /// # Errors
    /// If they are not there, or of another number of tokens.
    pub(super) fn read(&self, task: Task, variant: Variant, printed: &str) -> Result<Figures> {
        let object = last_json(printed)?;
        let number =
            |value: &Value, name: &str| value.get(name).and_then(Value::as_f64).with_context(|| format!("no `{name}`"));
        let part = match task {
            Task::Prefill { .. } => "prefill",
            Task::Decode { .. } => "decode",
            Task::Load => "load",
        };
        let (tokens, seconds, detail) = match self {
            Self::Llama { .. } => {
                let run = object.get(0).context("no run in the list")?;
                let tokens = number(run, "n_prompt")? + number(run, "n_gen")?;
                (tokens, number(run, "avg_ns")? / 1e9, variant.name())
            }
            Self::Plimsoll { .. } => {
                let figures = object.get(part).with_context(|| format!("no `{part}`"))?;
                let tokens = if task == Task::Load { 1.0 } else { number(figures, "tokens")? };
                (tokens, number(figures, "seconds")?, routes(&object))
            }
            Self::Torch { .. } | Self::Candle { .. } => {
                let figures = object.get(part).with_context(|| format!("no `{part}`"))?;
                let version =
                    |name: &str| object.get(name).and_then(Value::as_str).map(|version| format!("{name} {version}"));
                let versions: Vec<String> = ["torch", "transformers"].into_iter().filter_map(version).collect();
                (number(figures, "tokens")?, number(figures, "seconds")?, versions.join(", "))
            }
        };
        ensure!(seconds > 0.0, "it took no time");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of tokens")]
        let tokens = tokens as usize;
        Ok(Figures { tokens, seconds, detail })
    }
}

/// oneDNN's name of an instruction set without AMX.
fn onednn_isa(cpu: &str) -> String {
    if cpu == "avx512" { "AVX512_CORE_BF16".to_owned() } else { cpu.to_uppercase() }
}

impl Variant {
    fn name(self) -> String {
        match self {
            Self::Only => String::new(),
            Self::Llama { flash_attention, ubatch } => {
                format!("flash attention {}, ubatch {ubatch}", if flash_attention { "on" } else { "off" })
            }
        }
    }
}

/// The JSON value that a program prints alone, or as its last line.
fn last_json(printed: &str) -> Result<Value> {
    if let Ok(value) = serde_json::from_str(printed) {
        return Ok(value);
    }
    let line =
        printed.lines().rfind(|line| line.trim_start().starts_with('{')).context("no JSON object was printed")?;
    Ok(serde_json::from_str(line)?)
}

/// Routes of a run, each once, as `a + b`.
fn routes(object: &Value) -> String {
    let mut seen: Vec<&str> = Vec::new();
    for route in object.get("routes").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        if !seen.contains(&route) {
            seen.push(route);
        }
    }
    seen.join(" + ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> Side {
        Side::Plimsoll { cpu: Some("avx2".to_owned()), kv_dtype: Some("f32".to_owned()), chunk: Some(512) }
    }

    fn llama() -> Side {
        Side::Llama { label: Some("avx2".to_owned()), path: PathBuf::from("llama-bench") }
    }

    fn model() -> Model {
        Model { name: "tiny".to_owned(), path: PathBuf::from("tiny.gguf"), config: None, shape: None }
    }

    fn words(side: &Side, task: Task) -> String {
        let variant = side.variants(task)[0];
        let command = side.command(task, variant, &model(), Path::new("ids.txt"), 2);
        command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_side_is_named_after_what_was_asked_of_it() {
        assert_eq!(ours().name(), "plimsoll avx2, KV f32, chunks of 512");
        assert_eq!(Side::Plimsoll { cpu: None, kv_dtype: None, chunk: None }.name(), "plimsoll");
        assert_eq!(llama().name(), "llama.cpp avx2");
        let cpu = Some("avx2".to_owned());
        assert_eq!(
            Side::Torch { python: "python3".into(), dtype: TorchDtype::Bf16, cpu, most_tokens: 8192 }.name(),
            "torch bf16 avx2"
        );
    }

    #[test]
    fn all_sides_get_the_same_work() {
        let prefill = Task::Prefill { tokens: 512 };
        let want = "run --raw --json --temperature 0 --max-tokens 0 --threads 2 --model tiny.gguf --token-ids ids.txt \
                    --cpu avx2 --kv-dtype f32 --chunk 512";
        assert_eq!(words(&ours(), prefill), want);
        assert_eq!(words(&llama(), prefill), "-m tiny.gguf -o json -r 1 -t 2 -fa 0 -ub 512 -p 512 -n 0");
        let decode = Task::Decode { context: 8192, tokens: 64 };
        assert!(words(&ours(), decode).contains("--max-tokens 65"));
        assert!(words(&llama(), decode).ends_with("-p 0 -n 64 -d 8192"));
        assert!(words(&llama(), Task::Prefill { tokens: 8192 }).ends_with("--no-warmup"));
    }

    #[test]
    fn the_best_of_flash_attention_and_ubatch_counts() {
        assert_eq!(llama().variants(Task::Prefill { tokens: 2048 }).len(), 4);
        assert_eq!(llama().variants(Task::Prefill { tokens: 512 }).len(), 2);
        assert_eq!(ours().variants(Task::Prefill { tokens: 2048 }), [Variant::Only]);
    }

    #[test]
    fn figures_are_read_from_what_each_side_prints() {
        let prefill = Task::Prefill { tokens: 512 };
        let printed = r#"{"prefill": {"tokens": 512, "seconds": 0.5}, "decode": {"tokens": 4, "seconds": 0.1},
            "load": {"seconds": 0.2}, "routes": ["a", "b", "a"]}"#;
        let read = ours().read(prefill, Variant::Only, printed).unwrap();
        assert_eq!(read, Figures { tokens: 512, seconds: 0.5, detail: "a + b".to_owned() });
        assert_eq!(ours().read(Task::Load, Variant::Only, printed).unwrap().seconds, 0.2);
        let variant = Variant::Llama { flash_attention: true, ubatch: 2048 };
        let printed = r#"[{"n_prompt": 512, "n_gen": 0, "avg_ns": 2000000000, "avg_ts": 256.0}]"#;
        let read = llama().read(prefill, variant, printed).unwrap();
        assert_eq!(read, Figures { tokens: 512, seconds: 2.0, detail: "flash attention on, ubatch 2048".to_owned() });
        let torch = Side::Torch { python: "python3".into(), dtype: TorchDtype::F32, cpu: None, most_tokens: 8192 };
        let printed = "warning\n{\"decode\": {\"tokens\": 4, \"seconds\": 0.4}, \"torch\": \"2.15\"}\n";
        let read = torch.read(Task::Decode { context: 8, tokens: 4 }, Variant::Only, printed).unwrap();
        assert_eq!(read, Figures { tokens: 4, seconds: 0.4, detail: "torch 2.15".to_owned() });
        assert!(torch.read(prefill, Variant::Only, "no figures").is_err());
        assert!(llama().read(prefill, variant, "[]").is_err());
    }

    #[test]
    fn a_side_says_why_it_has_no_part() {
        let candle = Side::Candle { most_tokens: 512 };
        assert_eq!(candle.declines(Task::Prefill { tokens: 512 }, &model()), None);
        assert!(candle.declines(Task::Prefill { tokens: 513 }, &model()).unwrap().contains("above 512 tokens"));
        let torch = Side::Torch { python: "python3".into(), dtype: TorchDtype::F32, cpu: None, most_tokens: 8192 };
        assert!(torch.declines(Task::Prefill { tokens: 8 }, &model()).unwrap().contains("no config.json of tiny"));
    }
}
