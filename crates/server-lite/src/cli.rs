//! The command line. Every flag has an environment name, `PLIMSOLL_...`; libraries read no environment, only this does.

mod engine;
mod estimate;
mod hub;
mod number;
mod prefix;
mod sampling;

use crate::error::AppError;
use clap::{
    ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum, builder::FalseyValueParser,
    error::ErrorKind, parser::ValueSource,
};
pub(crate) use engine::{AttentionArg, Beyond, BudgetArgs, DeviceArg, EngineArgs, KvDtypeArg, Limit, QuantizeArg};
pub(crate) use estimate::{DoctorArgs, EstimateArgs, PassLogitsArg, PlanArgs, Subject, SubjectArgs};
pub(crate) use hub::hub_settings;
use plimsoll_prefill::ChunkSize;
pub(crate) use prefix::PrefixArgs;
use sampling::SamplingArgs;
use std::{ffi::OsString, num::NonZeroUsize, path::PathBuf, str::FromStr};

/// Long-context LLM prefill that never passes the memory line.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads the command line and the environment; `None` if help or version was asked for, and printed.
    ///
    /// # Errors
    /// [`AppError::CommandLine`], in one line with hints, unlike clap's own.
    pub(crate) fn read() -> Result<Option<Self>, AppError> {
        let matches = match Self::whole_command().try_get_matches() {
            Ok(matches) => matches,
            Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
                return error.print().map(|()| None).map_err(AppError::Stdout);
            }
            Err(error) => return Err(in_one_line(&error)),
        };
        let mut cli = Self::from_arg_matches(&matches).map_err(|error| in_one_line(&error))?;
        if let Some((_, matches)) = matches.subcommand() {
            match &mut cli.command {
                Command::Run(args) => {
                    args.settle_input(matches)?;
                    args.refuse_idle(matches)?;
                    if args.guard == SwitchArg::On {
                        args.budget.check()?;
                    }
                }
                Command::Estimate(args) => {
                    args.subject.settle(matches)?;
                    args.budget.check()?;
                }
                Command::Plan(args) => {
                    args.subject.settle(matches)?;
                    args.budget.check()?;
                }
                Command::Doctor(_) | Command::Models { .. } => {}
            }
        }
        Ok(Some(cli))
    }

    /// The command line, on which a negative number is the value of the flag before it and no flag: its value is refused in the flag's words.
    fn whole_command() -> clap::Command {
        let value = |arg: clap::Arg| match arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        };
        Self::command().mut_subcommands(move |command| command.mut_args(value))
    }
}

/// clap's message, which spreads over paragraphs, as one line and hints.
fn in_one_line(error: &clap::Error) -> AppError {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let hints = vec!["plimsoll --help lists the commands".to_owned()];
        return AppError::CommandLine { message: "no command given".to_owned(), hints };
    }
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n");
    let message = paragraphs.next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    let hints = paragraphs.flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty());
    let hints = hints.map(|line| line.strip_prefix("tip: ").unwrap_or(line).to_owned()).collect();
    AppError::CommandLine { message, hints }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt.
    Run(Box<RunArgs>),
    /// Say what a prompt would take, and whether it fits. The exit code is 0 either way: the answer is printed.
    Estimate(Box<EstimateArgs>),
    /// Show the memory of one pass, step by step.
    Plan(Box<PlanArgs>),
    /// Show what this machine has and allows: instruction sets, memory ceilings, models.
    Doctor(Box<DoctorArgs>),
    /// Fetch and list models by short name.
    Models {
        #[command(subcommand)]
        command: ModelsCommand,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelsCommand {
    /// Fetch a model into the cache folder and print its path.
    Fetch {
        /// Short name, or `hf:org/repo[@revision][:file.gguf|:quantization]`.
        name: OsString,
        #[command(flatten)]
        cache: CacheArgs,
    },
    /// List the short names.
    List,
}

#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    /// Folder for fetched models; default: `plimsoll` in the user's cache folder.
    #[arg(long, env = "PLIMSOLL_CACHE_DIR", value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
}

/// Arguments that name the prompt; one of them is given.
const INPUTS: [&str; 3] = ["prompt", "prompt_file", "token_ids"];

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("input").required(true).multiple(true).args(INPUTS))]
pub(crate) struct RunArgs {
    /// A GGUF file, a folder with config.json and safetensors, a short name (see `plimsoll models list`), or `hf:org/repo[@revision][:file.gguf|:quantization]`.
    #[arg(short, long, env = "PLIMSOLL_MODEL", default_value = "smollm2-135m")]
    pub(crate) model: OsString,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,

    /// The prompt.
    #[arg(short, long, env = "PLIMSOLL_PROMPT", value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// File that holds the prompt; `-`: standard input.
    #[arg(long, env = "PLIMSOLL_PROMPT_FILE", value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// File of whitespace-separated token ids, taken as they are; `-`: standard input.
    #[arg(long, env = "PLIMSOLL_TOKEN_IDS", value_name = "FILE")]
    pub(crate) token_ids: Option<PathBuf>,
    /// No chat template: the text as it is, with the tokenizer's own special tokens only.
    #[arg(long, env = "PLIMSOLL_RAW", value_parser = FalseyValueParser::new())]
    pub(crate) raw: bool,

    /// Most tokens to generate; default: the smaller of 1,024 and what fits. 0 only prefills.
    #[arg(short = 'n', long, env = "PLIMSOLL_MAX_TOKENS", value_name = "N", value_parser = number::count::<usize>)]
    pub(crate) max_tokens: Option<usize>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    /// Rows per prefill chunk; `auto`: the most that the budget allows, up to 512.
    #[arg(long, env = "PLIMSOLL_CHUNK", default_value = "auto", value_name = "auto|N")]
    pub(crate) chunk: ChunkArg,
    #[command(flatten)]
    pub(crate) budget: BudgetArgs,
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(flatten)]
    pub(crate) prefix: PrefixArgs,

    /// Write the memory timeline, planned and measured, as .csv or .svg.
    #[arg(long, env = "PLIMSOLL_MEMORY_TRACE", value_name = "OUT")]
    pub(crate) memory_trace: Option<PathBuf>,
    /// Tell on standard error what holds memory, chunk by chunk: 1 only looks; 2 also gives back what it can and looks again, which changes what
    /// it sees.
    #[arg(long, env = "PLIMSOLL_MEMDBG", value_name = "0|1|2", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) memdbg: u8,
    /// What keeps prefill inside the machine and the budget. `off`: nothing does, for a comparison.
    #[arg(long, env = "PLIMSOLL_GUARD", value_enum, default_value_t = SwitchArg::On, hide = true)]
    pub(crate) guard: SwitchArg,
    /// Whether memory that a chunk has freed goes back to the system at once. `off`: for a comparison.
    #[arg(long, env = "PLIMSOLL_DRAIN", value_enum, default_value_t = SwitchArg::On, hide = true)]
    pub(crate) drain: SwitchArg,
    /// Fill the keys and values of so many of the prompt's first tokens with numbers instead of computing them: to measure memory at lengths that
    /// would take long. What is said after it has no meaning.
    #[arg(long, env = "PLIMSOLL_SYNTHETIC_KV", value_name = "TOKENS", default_value_t = 0, hide = true, value_parser = number::count::<usize>)]
    pub(crate) synthetic_kv: usize,
    /// Write a hash of what every step of the prefill wrote, one line each.
    #[arg(long, env = "PLIMSOLL_TRACE_HASHES", value_name = "OUT")]
    pub(crate) trace_hashes: Option<PathBuf>,
    /// Write prompt ids and logits of prompt rows as safetensors.
    #[arg(long, env = "PLIMSOLL_LOGITS_OUT", value_name = "OUT")]
    pub(crate) logits_out: Option<PathBuf>,
    /// Which prompt rows `--logits-out` holds.
    #[arg(long, env = "PLIMSOLL_LOGIT_ROWS", value_enum, default_value_t = LogitRowsArg::Last)]
    pub(crate) logit_rows: LogitRowsArg,
    /// Print one JSON object instead of text.
    #[arg(long, env = "PLIMSOLL_JSON", value_parser = FalseyValueParser::new())]
    pub(crate) json: bool,
}

impl RunArgs {
    /// Whether the logits of every prompt row are to be written.
    pub(crate) fn all_logits(&self) -> bool {
        self.logits_out.is_some() && self.logit_rows == LogitRowsArg::All
    }

    /// Refuses flags that mean nothing without another; from the environment, which may be set for other runs, they are none.
    fn refuse_idle(&self, matches: &ArgMatches) -> Result<(), AppError> {
        let is_flag = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        let idle = [
            ("prefix_cache_limit", self.prefix.prefix_cache.is_some(), "--prefix-cache-limit", "--prefix-cache DIR"),
            ("logit_rows", self.logits_out.is_some(), "--logit-rows", "--logits-out OUT"),
        ];
        match idle.into_iter().find(|&(id, is_used, ..)| is_flag(id) && !is_used) {
            Some((.., flag, other)) => Err(AppError::Usage(format!("{flag} means nothing without {other}"))),
            None => Ok(()),
        }
    }

    /// Leaves one input: what the command line says goes before what the environment says.
    fn settle_input(&mut self, matches: &ArgMatches) -> Result<(), AppError> {
        let from = |id| matches.value_source(id);
        if INPUTS.iter().any(|&id| from(id) == Some(ValueSource::CommandLine)) {
            let keep = |id| from(id) == Some(ValueSource::CommandLine);
            self.prompt = self.prompt.take().filter(|_| keep("prompt"));
            self.prompt_file = self.prompt_file.take().filter(|_| keep("prompt_file"));
            self.token_ids = self.token_ids.take().filter(|_| keep("token_ids"));
        }
        let given = [self.prompt.is_some(), self.prompt_file.is_some(), self.token_ids.is_some()];
        if given.into_iter().filter(|&given| given).count() > 1 {
            let message = "more than one prompt: give one of --prompt, --prompt-file and --token-ids".to_owned();
            return Err(AppError::CommandLine { message, hints: Vec::new() });
        }
        Ok(())
    }
}

/// `--chunk`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkArg {
    Auto,
    Rows(NonZeroUsize),
}

impl ChunkArg {
    /// The rows that were asked for; `None` for `auto`.
    pub(crate) fn fixed_rows(self) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Rows(rows) => Some(rows.get()),
        }
    }

    /// The same for a driver; automatic chunks have at most `max_rows`.
    pub(crate) fn size(self, max_rows: usize) -> ChunkSize {
        match self {
            Self::Auto => {
                NonZeroUsize::new(max_rows).map_or_else(ChunkSize::default, |max_rows| ChunkSize::Auto { max_rows })
            }
            Self::Rows(rows) => ChunkSize::Fixed(rows),
        }
    }
}

impl FromStr for ChunkArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Rows).map_err(|_| format!("\"{text}\" is neither auto nor a number of rows from 1 on"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SwitchArg {
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogitRowsArg {
    Last,
    All,
}
