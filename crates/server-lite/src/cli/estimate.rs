//! Arguments of `estimate`, `plan` and `doctor`.

use super::{BudgetArgs, CacheArgs, ChunkArg, EngineArgs, number};
use crate::error::AppError;
use clap::{ArgMatches, Args, ValueEnum, builder::FalseyValueParser, parser::ValueSource};
use std::{
    ffi::{OsStr, OsString},
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

/// Which model is priced.
#[derive(Debug, Args)]
pub(crate) struct SubjectArgs {
    /// What `plimsoll run` takes, if it is on this machine: nothing is downloaded.
    #[arg(short, long, env = "PLIMSOLL_MODEL", default_value = "smollm2-135m")]
    model: OsString,
    /// A config.json or a GGUF file of which the header is read: no weights are needed.
    #[arg(long, env = "PLIMSOLL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
}

/// The model that [`SubjectArgs`] names.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subject<'a> {
    Model(&'a OsStr),
    Config(&'a Path),
}

impl SubjectArgs {
    pub(crate) fn subject(&self) -> Subject<'_> {
        match &self.config {
            Some(path) => Subject::Config(path),
            None => Subject::Model(&self.model),
        }
    }

    /// Leaves one of the two: what the command line says goes before what the environment says.
    pub(super) fn settle(&mut self, matches: &ArgMatches) -> Result<(), AppError> {
        let is_flag = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        match (is_flag("model"), is_flag("config")) {
            (true, true) => {
                let message = "two models: give one of --model and --config".to_owned();
                return Err(AppError::CommandLine { message, hints: Vec::new() });
            }
            (true, false) => self.config = None,
            (false, _) => {}
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct EstimateArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
    /// Tokens of the prompt.
    #[arg(long, env = "PLIMSOLL_CONTEXT", value_name = "N", value_parser = number::size::<NonZeroUsize>)]
    pub(crate) context: NonZeroUsize,
    /// Tokens of the answer, which come on top of the prompt.
    #[arg(short = 'n', long, env = "PLIMSOLL_MAX_TOKENS", value_name = "N", default_value_t = 0, value_parser = number::count::<usize>)]
    pub(crate) max_tokens: usize,
    /// Rows per prefill chunk; `auto`: the most that the budget allows, up to 512.
    #[arg(long, env = "PLIMSOLL_CHUNK", default_value = "auto", value_name = "auto|N")]
    pub(crate) chunk: ChunkArg,
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Print one JSON object instead of text.
    #[arg(long, env = "PLIMSOLL_JSON", value_parser = FalseyValueParser::new())]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) subject: SubjectArgs,
    /// Tokens that the sequence holds after the pass.
    #[arg(long, env = "PLIMSOLL_CONTEXT", value_name = "N", value_parser = number::size::<NonZeroUsize>)]
    pub(crate) context: NonZeroUsize,
    /// Rows of the pass; `auto`: 512, or the whole context if that is less.
    #[arg(long, env = "PLIMSOLL_CHUNK", default_value = "auto", value_name = "auto|N")]
    pub(crate) chunk: ChunkArg,
    /// Rows whose logits are computed.
    #[arg(long, alias = "logit-rows", env = "PLIMSOLL_PASS_LOGITS", value_enum, default_value_t = PassLogitsArg::Last)]
    pub(crate) pass_logits: PassLogitsArg,
    /// List every step in the order they run, instead of the largest ones.
    #[arg(long, env = "PLIMSOLL_ALL", value_parser = FalseyValueParser::new())]
    pub(crate) all: bool,
    /// Write every step as comma-separated values.
    #[arg(long, env = "PLIMSOLL_CSV", value_name = "OUT")]
    pub(crate) csv: Option<PathBuf>,
    /// Draw the timeline.
    #[arg(long, env = "PLIMSOLL_SVG", value_name = "OUT")]
    pub(crate) svg: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Print one JSON object, with every step, instead of text.
    #[arg(long, env = "PLIMSOLL_JSON", value_parser = FalseyValueParser::new())]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PassLogitsArg {
    None,
    Last,
    All,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    /// Print one JSON object instead of text.
    #[arg(long, env = "PLIMSOLL_JSON", value_parser = FalseyValueParser::new())]
    pub(crate) json: bool,
}
