//! The command line of `cargo xtask bench`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(super) enum What {
    /// Prefill of whole prompts by the program, each in a fresh process.
    Prefill(Prefill),
    /// Decode after a prompt of so many tokens, by the program.
    Decode(Decode),
    /// Time until the program is ready to prefill, the model's file in the page cache.
    Load(Load),
    /// Matrix products alone, by weight type, shape and rows.
    Linear(Linear),
    /// Attention alone, by head size and keys; and the tiled route against the reference.
    Attention(Attention),
}

/// What every measurement takes.
#[derive(Debug, Clone, Args)]
pub(super) struct Common {
    /// Measurements of each side; their medians are compared.
    #[arg(long, default_value = "5")]
    pub(super) runs: NonZeroUsize,
    /// Threads of every side; as many as there are cores if not given.
    #[arg(long)]
    pub(super) threads: Option<NonZeroUsize>,
    /// Instruction sets to force, each a row of its own (amx, avx512, avx2, scalar); the best one of the machine if none is given.
    #[arg(long, value_delimiter = ',', value_name = "SET,..")]
    pub(super) cpu: Vec<String>,
    /// Measure the machine's peak per instruction set, and state the share of it that each row reaches.
    #[arg(long)]
    pub(super) roofline: bool,
    /// A short name for this machine in the record's folder.
    #[arg(long, value_name = "NAME")]
    pub(super) machine: Option<String>,
}

/// What runs of the whole program take.
#[derive(Debug, Clone, Args)]
pub(super) struct Whole {
    /// Models: short names, GGUF files, or folders.
    #[arg(long = "model", value_delimiter = ',', default_value = crate::models::DEFAULT_MODEL, value_name = "MODEL,..")]
    pub(super) models: Vec<String>,
    /// Types in which keys and values are kept, each a row of its own.
    #[arg(long = "kv-dtype", value_delimiter = ',', value_name = "TYPE,..")]
    pub(super) kv_dtypes: Vec<String>,
    /// Rows per prefill chunk, each a row of its own; as the program chooses if none is given.
    #[arg(long = "chunk", value_delimiter = ',', value_name = "ROWS,..")]
    pub(super) chunks: Vec<NonZeroUsize>,
    #[command(flatten)]
    pub(super) peers: Peers,
}

/// Who else is measured; docs/peers.md says how to get each.
#[derive(Debug, Clone, Args)]
pub(super) struct Peers {
    /// Measure the peers that are present, on the same shapes, taking turns; name the absent ones.
    #[arg(long)]
    pub(super) peers: bool,
    /// llama.cpp's `llama-bench`, once per build, with a label in front: `avx2=build/bin/llama-bench`; looked for in PATH if not given.
    #[arg(long = "llama-bench", value_name = "[LABEL=]PATH")]
    pub(super) llama_bench: Vec<String>,
    /// A Python with torch and transformers; `python3` if not given.
    #[arg(long, value_name = "PYTHON")]
    pub(super) torch: Option<PathBuf>,
    /// Types that torch runs in, each a row of its own.
    #[arg(long = "torch-dtype", value_delimiter = ',', default_value = "bf16,f32", value_enum)]
    pub(super) torch_dtypes: Vec<TorchDtype>,
    /// Instruction sets to limit torch to (avx2, avx512), each a row of its own; all that it finds if none is given.
    #[arg(long = "torch-cpu", value_delimiter = ',', value_name = "SET,..")]
    pub(super) torch_cpu: Vec<String>,
    /// Longest prompt that torch is given, in one pass: its masks grow with the square.
    #[arg(long, default_value = "8192", value_name = "TOKENS")]
    pub(super) torch_tokens: usize,
    /// Measurements of each peer; as many as of plimsoll if not given.
    #[arg(long, value_name = "N")]
    pub(super) peer_runs: Option<NonZeroUsize>,
    /// Longest prompt that candle-transformers is given: it takes minutes for more. 0: not built at all.
    #[arg(long, default_value = "512", value_name = "TOKENS")]
    pub(super) candle_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub(super) enum TorchDtype {
    Bf16,
    F32,
}

impl TorchDtype {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Prefill {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) whole: Whole,
    /// Prompt lengths.
    #[arg(long, value_delimiter = ',', default_value = "512,2048,8192", value_name = "N,..")]
    pub(super) tokens: Vec<NonZeroUsize>,
}

#[derive(Debug, Args)]
pub(super) struct Decode {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) whole: Whole,
    /// Tokens before the first that is decoded.
    #[arg(long, value_delimiter = ',', default_value = "16,8192", value_name = "N,..")]
    pub(super) contexts: Vec<NonZeroUsize>,
    /// Tokens to decode.
    #[arg(long, default_value = "64")]
    pub(super) tokens: NonZeroUsize,
}

#[derive(Debug, Args)]
pub(super) struct Load {
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) whole: Whole,
}

#[derive(Debug, Args)]
pub(super) struct Linear {
    #[command(flatten)]
    pub(super) common: Common,
    /// Weight types by GGML's names, or `all`.
    #[arg(long, default_value = "q4_1,q5_0,q8_0,q4_k,bf16", value_name = "TYPE,..")]
    pub(super) types: String,
    /// Rows of the input.
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,512,2048", value_name = "N,..")]
    pub(super) rows: Vec<NonZeroUsize>,
    /// Inputs x outputs.
    #[arg(long, default_value = "576x576,576x1536,1536x576,576x49152,640x2048,2048x640", value_name = "KxN,..")]
    pub(super) shapes: String,
    /// Milliseconds that each product gets per measurement.
    #[arg(long, default_value = "100")]
    pub(super) ms: usize,
}

#[derive(Debug, Args)]
pub(super) struct Attention {
    #[command(flatten)]
    pub(super) common: Common,
    /// Query heads, KV heads and head_dim.
    #[arg(long, default_value = "9:3:64,16:8:128,4:1:256", value_name = "H:KV:D,..")]
    pub(super) heads: String,
    /// Query rows.
    #[arg(long, value_delimiter = ',', default_value = "512,1", value_name = "N,..")]
    pub(super) rows: Vec<NonZeroUsize>,
    /// Keys of the last row.
    #[arg(long, value_delimiter = ',', default_value = "512,2048,8192", value_name = "N,..")]
    pub(super) kv_lens: Vec<NonZeroUsize>,
    /// Types of keys and values.
    #[arg(long = "kv-dtype", value_delimiter = ',', default_value = "bf16", value_name = "TYPE,..")]
    pub(super) kv_dtypes: Vec<String>,
    /// Keys of the comparison of both routes at head_dim 256.
    #[arg(long, default_value = "8192", value_name = "N")]
    pub(super) reference_keys: NonZeroUsize,
    /// Query rows of that comparison: the reference takes a second or so for every ten of them.
    #[arg(long, default_value = "64", value_name = "N")]
    pub(super) reference_rows: NonZeroUsize,
    /// Leave that comparison out: the reference is slow.
    #[arg(long)]
    pub(super) no_reference: bool,
    /// Milliseconds that each call gets per measurement.
    #[arg(long, default_value = "200")]
    pub(super) ms: usize,
}
